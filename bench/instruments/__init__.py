"""Instruments that measure and keep figures: clocks, memory, goals; quorums to load, and histories of any length to
judge, which no cluster has to make first.
"""
