"""The phases of a run that need more than a few lines: getting ready, recovery, and copies of what nodes hold."""
