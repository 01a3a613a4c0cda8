"""Judges if a run was a real test: its faults, evidence, health of nodes, and fraction of successful operations."""
