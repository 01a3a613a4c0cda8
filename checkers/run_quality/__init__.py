"""Judges whether a run was a real test: faults, evidence, health of nodes, and the share of successful operations."""
