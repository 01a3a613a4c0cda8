"""Fault injection: faults as data, the grudges behind partitions, schedules, and the proof that a fault took effect."""
