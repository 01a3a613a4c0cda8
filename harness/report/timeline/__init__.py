"""The run on one axis of time."""
