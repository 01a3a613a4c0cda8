"""What nodes wrote around a violation: their output, their traces, the faults and the clients, in one order of time."""
