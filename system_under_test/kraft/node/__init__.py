"""One node: the consensus core, the log and the controller, connected to clock, disk and network."""
