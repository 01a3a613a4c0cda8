"""The faults of a run: what was ordered, and what was measured."""
