"""Measure how soon a fault strikes that waits for a line: from the line's own clock until it is in force.

python -m bench.reaction namespaces 30
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from random import Random
from typing import cast

from checkers.record.faults import Card, FaultRecord
from harness.agent.lines import Lines
from harness.backends.agent_cluster import AgentCluster
from harness.backends.backend import Backend, ClusterSpec
from harness.registry import load_backend
from nemesis.measure import Hooks
from nemesis.play import play
from nemesis.resolve import MainPhase
from system_under_test.subject import NodeStatus

SERVERS = ("n1", "n2", "n3")
_SERVER = "import time\nwhile True:\n    time.sleep(0.7)\n    print('moment', time.monotonic_ns(), flush=True)\n"
KINDS = (("pause", "leader"), ("kill", "leader"), ("partition", "leader-alone"))


async def reactions_ms(backend: str, times: int) -> dict[str, list[float]]:
    cluster = load_backend(backend, ClusterSpec(f"reaction{os.getpid()}", SERVERS, ("c1",), 1))
    found: dict[str, list[float]] = {kind: [] for kind, _ in KINDS}
    try:
        await cluster.create(lambda words: None)
        for server in SERVERS:
            await cluster.node(server).start([*cluster.node(server).python, "-S", "-E", "-c", _SERVER])
        found = {"freeze": [await _frozen_ms(cast(AgentCluster, cluster)) for _ in range(times)], **found}
        for number in range(times):
            for kind, name in KINDS:
                record = await _played(cluster, Card(1, kind, name, 0.0, 0.3, line="moment"), number)
                written_ns = int(record.words.split("moment ")[-1].strip("'"))
                found[kind].append((record.injected_ns - written_ns) / 1e6)
    finally:
        await cluster.destroy()
    return found


async def _frozen_ms(cluster: AgentCluster) -> float:
    """Until the agent has stopped the server, which then waits for its fault."""
    folder = cluster.node("n1").log_dir
    line, at_ns = await cluster._link("n1").ask(Lines.await_line, folder, "moment", 1, 60.0, True)
    await cluster.thaw("n1")
    return (at_ns - int(line.split()[1])) / 1e6


async def _played(cluster: Backend, card: Card, seed: int) -> FaultRecord:
    async def statuses() -> list[NodeStatus]:
        return [NodeStatus(name, 1, "leader" if name == "n1" else "follower", "n1") for name in SERVERS]

    async def nothing(record: FaultRecord) -> None:
        return None

    main = MainPhase(cluster, statuses, time.monotonic_ns, time.monotonic_ns())
    (record,) = await play([card], main, Random(seed), Hooks(lambda record: None, nothing))
    return record


if __name__ == "__main__":
    name, count = sys.argv[1], int(sys.argv[2])
    for kind, times_ms in asyncio.run(reactions_ms(name, count)).items():
        times_ms.sort()
        p99 = times_ms[min(len(times_ms) - 1, round(0.99 * len(times_ms)))]
        load_now = os.getloadavg()[0]
        print(f"{name} {kind}: n {len(times_ms)}, median {statistics.median(times_ms):.1f} ms, p99 {p99:.1f} ms, "
              f"least {times_ms[0]:.1f} ms, load {load_now:.0f}")  # fmt: skip
