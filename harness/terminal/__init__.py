"""Output to a terminal or the log of a CI job: the lines of a running test, and witnesses as characters."""
