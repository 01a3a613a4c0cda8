"""One node: the consensus core, the log and the controller tied to clock, disk and network."""
