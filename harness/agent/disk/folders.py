"""The folders at the top of a disk under test."""

DATA = "data"
"""What the server sees of it."""
PROBE = "probe"
"""The agent's own files, by which it proves what the disk does."""
