"""Prepared training data: packing, the artifact, its reader and writer."""
