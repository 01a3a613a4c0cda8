"""Measure the cost of the handlers of the bundled KRaft: the table of `system_under_test/kraft/simulated.py`.

    python -m bench.handler_costs [--seconds 8] [--writers 8]

Three servers are processes on loopback with real sockets and fsyncs.  Writers write to the leader, and readers read;
then the leader is stopped a few times, so that there are votes.  Every callback of a server's loop is measured by the
processor time of its thread, and counts for the message that it handles (`run_measured`).  The cost of a kind is the
mean over all servers.  The bytes of an answer are decoded before its type is known; that time is shared among all
answers.  A rare kind (fewer than RARE) is left out, because too few measurements prove little.

*Measured node.*  It runs as `python -m system_under_test.kraft` does, and at its end writes a file of figures: JSON,
kind -> [how often, processor seconds].  A kind is the name of what arrived: the type of a request or answer of another
voter, `read` or `write` of a client, `fsync` for the end of one that went on beside the loop, `timer`.  A context
variable carries the kind into tasks and callbacks that the handler starts, so their time counts as well.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import click

from bench.instruments.quorum_clusters import HOST, KRaft
from bench.instruments.writers import write_for
from system_under_test.client import Request
from system_under_test.kraft.__main__ import main as run_node
from system_under_test.kraft.client import question
from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.node.parts import DeadlineTimer
from system_under_test.kraft.wire import channel, frames
from system_under_test.kraft.wire.channel import Connection
from system_under_test.kraft.wire.frames import decode_request_header
from system_under_test.kraft.wire.versions import OUR_PREFIX

MEASURED_NODE = "measured-node"
"""First argument of a process that runs a node."""
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
        arguments = [MEASURED_NODE, str(figures), "--config", str(self._config(server))]
        return [sys.executable, "-m", "bench.handler_costs", *arguments]

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


OTHER, ANSWER = "other", "answer"
_CLIENT_REQUESTS = {32: "read", 44: "write"}
"""Kafka's API keys: DescribeConfigs and IncrementalAlterConfigs, which clients read and write registers with."""
_KIND: ContextVar[str] = ContextVar("kind", default=OTHER)

_count: Counter[str] = Counter()
_cpu_ns: Counter[str] = Counter()


def run_measured() -> int:
    """Run a node as `python -m system_under_test.kraft` does, and write its figures at its end."""
    figures = Path(sys.argv.pop(1))
    _instrument()
    status = run_node()
    figures.write_text(json.dumps({kind: [_count[kind], _cpu_ns[kind] / 1e9] for kind in _cpu_ns}))
    return status


def _instrument() -> None:
    plain_run = asyncio.Handle._run

    def run(handle: Any) -> None:
        began_ns = time.thread_time_ns()
        plain_run(handle)
        _cpu_ns[handle._context.get(_KIND, OTHER)] += time.thread_time_ns() - began_ns

    setattr(asyncio.Handle, "_run", run)  # noqa: B010 - for mypy it is a method
    plain_decode = decode_request_header

    def decode(frame: bytes) -> Any:
        header, at = plain_decode(frame)
        if header.api_key in _CLIENT_REQUESTS:
            _begins(_CLIENT_REQUESTS[header.api_key])
        return header, at

    setattr(frames, "decode_request_header", decode)  # noqa: B010 - the name that the server looks up
    _kind_of(QuorumNode, "take_raft_request", lambda node, number, request, reply: type(request).__name__)
    _kind_of(QuorumNode, "_answered", lambda node, effect, answer: type(answer).__name__)
    _kind_of(QuorumNode, "_flushed", lambda *_: "fsync")
    _kind_of(DeadlineTimer, "_rings", lambda *_: "timer")
    _kind_of(channel._Conversation, "data_received", lambda *_: ANSWER)


def _kind_of(owner: type, name: str, kind: Callable[..., str]) -> None:
    """Count the time from this call on for this kind."""
    plain = getattr(owner, name)

    def begins(*arguments: Any) -> Any:
        _begins(kind(*arguments))
        return plain(*arguments)

    setattr(owner, name, begins)


def _begins(kind: str) -> None:
    _count[kind] += 1
    _KIND.set(kind)


if __name__ == "__main__":
    if sys.argv[1:2] == [MEASURED_NODE]:
        sys.argv.pop(1)
        sys.exit(run_measured())
    main()
