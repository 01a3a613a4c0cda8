"""Linearizability of registers, with unique values and with repeated ones."""
