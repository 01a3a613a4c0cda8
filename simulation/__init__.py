"""Virtual time: an event loop, a network, disks and machines in one process.

This folder knows no system and no harness.  A program that is asyncio in Python runs here unchanged.  Every task has an
owner in a context variable, and the loop is the gate: it holds the callbacks of a paused process and drops those of a
dead one, so no line of the program has to know about the simulation.

Read in this order: `loop` (time, owners and the gate), `network` (connections between owners), `disk` (what was not
fsynced is lost), `machine` (a host with all of these).
"""
