"""The canary: an in-process fake register that must come out valid, and invalid with either of its switches.

It has no nodes, no faults and no elections; it is the harness' test of itself, recorder to report.
"""
