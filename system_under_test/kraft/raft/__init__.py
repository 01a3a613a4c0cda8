"""The consensus core: pure.  Imports nothing of the project but its own messages, performs no I/O, knows no port."""
