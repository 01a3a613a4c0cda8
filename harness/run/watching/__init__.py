"""What is watched while operations go on: verdicts so far, leaders, stalls, deaths, and the rate."""
