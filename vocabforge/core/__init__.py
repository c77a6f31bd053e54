"""Configuration, artefact manifests, errors, progress and distributed helpers. Imports nothing of ours."""
