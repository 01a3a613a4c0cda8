"""Nodes on virtual time: every machine, link and disk of a run is simulated in the harness' own process."""
