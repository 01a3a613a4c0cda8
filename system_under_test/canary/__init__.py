"""The canary: the harness' test of itself (`system.py`)."""
