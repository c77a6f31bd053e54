"""Prepared training data: packing, the artefact, its reader and writer."""
