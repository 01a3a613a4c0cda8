"""Instruments that measure and store figures (clocks, memory, goals); quorums to put under load; and synthetic
histories of any length, which need no cluster.
"""
