"""Witnesses drawn with characters, for a terminal or the log of a CI job."""
