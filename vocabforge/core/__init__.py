"""Configuration, artefact manifests, errors, progress and distributed helpers; the lowest layer."""
