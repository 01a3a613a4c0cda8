"""The consensus core.  It performs no I/O, imports no other package of the project, and does not know the ports."""
