"""Judges what a run kept, and files that users bring."""
