"""Judges a history in a file, by the name of a model."""
