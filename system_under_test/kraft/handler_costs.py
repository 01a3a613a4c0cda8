"""Costs of the handlers of a node on a real machine, for the simulator, where computing takes no time by itself.

Measured by `python -m bench.handler_costs`: three processes on loopback, real sockets and fsyncs, Python 3.11 on a busy
machine of two cores.  A handler counts with all that it leaves behind for later turns of the loop, frames included.
Timers are left out: nothing arrives where they ring.
"""

from __future__ import annotations

from collections.abc import Mapping

HANDLER_CPU_S: Mapping[str, float] = {
    "FetchRequest": 217e-6,
    "FetchResponse": 628e-6,
    "FetchSnapshotRequest": 217e-6,  # as a Fetch: none was measured
    "FetchSnapshotResponse": 628e-6,
    "VoteRequest": 1191e-6,
    "VoteResponse": 1512e-6,
    "BeginQuorumEpochRequest": 1485e-6,
    "EndQuorumEpochRequest": 1138e-6,
    "EpochResponse": 130e-6,
    "read": 155e-6,
    "write": 90e-6,
    "append": 90e-6,  # to a list, as a write
    "create": 90e-6,
    "fsync": 198e-6,
    "piece": 191e-6,  # of a stream: the mean of all requests and answers
}
"""Kind of message -> CPU seconds (`simulation.loop.Process.costs`)."""
