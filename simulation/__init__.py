"""Virtual time: an event loop, a network, disks and machines in one process.

This folder does not depend on any system or on the harness.  An asyncio program in Python runs here unchanged.  Every
task has an owner in a context variable, and the loop is the gate: it holds the callbacks of a paused process and drops
those of a dead process.  So the program needs no code for the simulation.

Read in this order: `loop` (time, owners and the gate), `network` (connections between owners), `disk` (loses data that
was not fsynced), `machine` (a host with all of these).
"""
