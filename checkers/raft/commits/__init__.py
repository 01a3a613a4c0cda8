"""Judges which entries were committed, and that they stay."""
