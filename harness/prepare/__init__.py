"""Prepares a machine for its first run."""
