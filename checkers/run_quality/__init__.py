"""Was it a real test: what the run exercised, how the nodes fared, and how often each operation succeeded."""
