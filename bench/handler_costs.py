"""Measure what the handlers of the bundled KRaft cost: the table of `system_under_test/kraft/simulated.py`.

    python -m bench.handler_costs [--seconds 8] [--writers 8]

Three servers are processes on loopback with real sockets and fsyncs.  Writers write to the leader, and readers read;
then the leader is stopped a few times, so that there are votes.  Every callback of a server's loop is measured by the
processor time of its thread, and counts for what it handles (`instruments/measured_node.py`).  The cost of a kind is
the mean over all servers.  The bytes of an answer are decoded before its type is known; that time is shared among all
answers.  A rare kind (fewer than RARE) is left out: too few say little.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import click

from bench.instruments.measured_node import ANSWER
from bench.instruments.quorum_clusters import HOST, KRaft
from bench.instruments.writers import write_for
from system_under_test.client import Request
from system_under_test.kraft.client.questions import question
from system_under_test.kraft.wire.channel import Connection
from system_under_test.kraft.wire.versions import OUR_PREFIX

SERVERS = 3
ELECTIONS = 4
RARE = 3
BESIDE = ("fsync", "timer", "NoneType")
"""Causes of calls that handle no message."""


class MeasuredKRaft(KRaft):
    """Each life of a server leaves a file of figures behind."""

    def _command(self, server: int) -> list[str]:
        number = len(list(self.folder.glob("figures-*"))) + 1
        figures = self.folder / f"figures-{server}-{number}.json"
        arguments = [str(figures), "--config", str(self._config(server))]
        return [sys.executable, "-m", "bench.instruments.measured_node", *arguments]

    def figures(self) -> tuple[Counter[str], Counter[str]]:
        """Return how often each kind was handled, and the processor seconds of it."""
        counts: Counter[str] = Counter()
        cpu_s: Counter[str] = Counter()
        for path in self.folder.glob("figures-*.json"):
            for kind, (count, seconds) in json.loads(path.read_text()).items():
                counts[kind] += count
                cpu_s[kind] += seconds
        return counts, cpu_s


@click.command()
@click.option("--seconds", default=8.0, show_default=True, help="Of writes and reads.")
@click.option("--writers", default=8, show_default=True)
def main(seconds: float, writers: int) -> None:
    """Print the processor time of each handler, in microseconds."""
    with tempfile.TemporaryDirectory(prefix="krucible-bench-") as folder:
        cluster = MeasuredKRaft(Path(folder), SERVERS)
        try:
            asyncio.run(_load(cluster, seconds, writers))
        finally:
            for server in cluster.servers:
                cluster.stop(server)
            cluster.close()
        counts, cpu_s = cluster.figures()
    arrived = [kind for kind in counts if kind not in (ANSWER, *BESIDE)]
    piece_us = sum(cpu_s[kind] for kind in (*arrived, ANSWER)) / sum(counts[kind] for kind in arrived) * 1e6
    print(f'    "piece": {piece_us:.0f}e-6,  # the mean of all requests and answers')
    answers = sum(count for kind, count in counts.items() if kind.endswith("Response"))
    for kind in sorted(counts, key=lambda kind: -cpu_s[kind]):
        if counts[kind] < RARE or kind == ANSWER:
            continue
        shared_s = cpu_s[ANSWER] / answers if kind.endswith("Response") else 0.0
        each_us = (cpu_s[kind] / counts[kind] + shared_s) * 1e6
        print(f'    "{kind}": {each_us:.0f}e-6,  # of {counts[kind]:,}')
    unnamed_s = sum(seconds for kind, seconds in cpu_s.items() if not counts[kind])
    print(f"of {sum(cpu_s.values()):.2f} processor seconds {unnamed_s:.2f} belong to no kind")


async def _load(cluster: MeasuredKRaft, seconds: float, writers: int) -> None:
    for server in cluster.servers:
        cluster.start(server)
    leader = await cluster.leader()
    await cluster.prepare(leader, writers)
    reading = asyncio.create_task(_read(cluster, leader))
    made = await cluster.writers(leader, writers)
    await write_for(made, 0.0, seconds, lambda: None)
    reading.cancel()
    for writer in made:
        writer.close()
    for _ in range(ELECTIONS):
        cluster.stop(leader)
        former = leader
        leader = await cluster.leader([server for server in cluster.servers if server != former])
        cluster.start(former)
        await asyncio.sleep(1.0)


async def _read(cluster: MeasuredKRaft, leader: int) -> None:
    connection = Connection(HOST, cluster.port(leader), f"{OUR_PREFIX}bench")
    while True:
        await connection.ask(question(Request("read", "t0"), SERVERS))
        await asyncio.sleep(0.005)


if __name__ == "__main__":
    main()
