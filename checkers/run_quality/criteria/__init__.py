"""The figures that make a run a real test, each with its minimum: faults, answers, nodes and the harness itself."""
