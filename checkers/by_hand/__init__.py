"""Judges a history that somebody has in a file, by the name of a model."""
