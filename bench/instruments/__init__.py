"""Instruments that measure and keep figures: clocks, memory, goals, writers, and quorums to load."""
