"""Linearizability of registers and cas-registers: the checker, the smallest window, and the witness."""
