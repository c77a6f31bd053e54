"""Layouts of drafters on disk, each with a writer and a strict reader."""
