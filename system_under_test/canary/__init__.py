"""The canary: objects in the harness' own process, which must come out valid, and invalid with any of their switches.

It has no nodes, no faults and no elections; it is the harness' test of itself, recorder to report.
"""
