"""Measure what the disk under test costs an idle cluster: acknowledged writes per second with it and without it, in
turn.

    python -m bench.disk --pairs 2 --seconds 8 --backend namespaces

No fault holds.  Each cluster of a pair is made anew; WRITERS processes write registers as fast as answers come.  Which
of a pair comes first alternates, so that a machine that gets slower favours neither.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from pathlib import Path

import click

from bench.instruments.figures import Sheet
from checkers.base.history import Type
from harness.backends.backend import Backend, ClusterSpec
from harness.registry import load_backend, load_subject, load_workload
from harness.spec import CLIENT_NODES, Spec
from nemesis.cluster import DISK
from nemesis.coverage import leader_now
from system_under_test.client import Placement, Request
from system_under_test.own.subject import Subject
from system_under_test.subject import Node

WRITERS = 20
SETTLE_S = 1.0
GOAL = 0.2
"""At most this share of the writes per second may be lost."""
_PATIENCE_S = 5.0
_LEADER_S = 60.0


@click.command()
@click.option("--subject", default="kraft", show_default=True)
@click.option("--backend", default="namespaces", show_default=True)
@click.option("--nodes", default=5, show_default=True)
@click.option("--pairs", default=2, show_default=True)
@click.option("--seconds", default=8.0, show_default=True, help="Of writing on each cluster.")
@click.option("--json", "file", type=click.Path(path_type=Path), default=None, help="Append the figures to this file.")
def main(subject: str, backend: str, nodes: int, pairs: int, seconds: float, file: Path | None) -> None:
    """Pairs of clusters, one with the disk under test and one without."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(pairs):
        for faulty in (True, False) if pair % 2 else (False, True):
            rate = asyncio.run(_rate(subject, backend, nodes, faulty, seconds))
            found[faulty].append(rate)
            layer = "with" if faulty else "without"
            print(f"{subject} {layer} the disk under test: {rate:,.0f} writes/s   load {os.getloadavg()[0]:.1f}")
    sheet = Sheet(file)
    plain, layered = statistics.median(found[False]), statistics.median(found[True])
    sheet.add(f"{subject}, plain disk", nodes, "servers", plain, "1/s")
    sheet.add(f"{subject}, disk under test", nodes, "servers", layered, "1/s")
    sheet.add(f"{subject}, share lost to the disk under test", nodes, "servers", 1 - layered / plain, "", GOAL)


async def _rate(name: str, backend_name: str, nodes: int, faulty: bool, seconds: float) -> float:
    """Acknowledged writes per second of a fresh cluster."""
    spec, subject = Spec(subject=name, nodes=nodes), load_subject(name)
    wanted = frozenset({DISK}) if faulty else frozenset()
    cluster = ClusterSpec(f"bench{os.getpid()}", spec.servers, CLIENT_NODES, 1, wanted, needs=subject.needs)
    backend = load_backend(backend_name, cluster)
    try:
        await backend.create(lambda words: None)
        servers = [backend.node(server) for server in spec.servers]
        await subject.install(servers, seed=1, bug=None)
        await asyncio.gather(*(subject.start(node) for node in servers))
        await _until_led(subject, servers)
        if faulty and (why := backend.lacks(DISK)):
            raise SystemExit(f"the disks of the servers cannot be put under test here: {why}")
        return await _write(subject, backend, spec, servers, seconds)
    finally:
        await backend.destroy()


async def _until_led(subject: Subject, servers: list[Node]) -> None:
    until = time.monotonic() + _LEADER_S
    names = [node.name for node in servers]
    while time.monotonic() < until:
        statuses = [status for node in servers if (status := await subject.status(node)) is not None]
        if len(statuses) == len(servers) and leader_now(statuses, names) is not None:
            return
        await asyncio.sleep(0.1)
    raise SystemExit(f"no leader within {_LEADER_S:g} s")


async def _write(subject: Subject, backend: Backend, spec: Spec, servers: list[Node], seconds: float) -> float:
    """Let all writers write for so long, after a moment to settle; what was acknowledged per second."""
    workload = load_workload(spec)
    peers = {node.name: f"{node.address}:{subject.port}" for node in servers}
    config = {**subject.client_config(seed=1, bug=None), "functions": dict(workload.functions)}
    placed = [Placement(t, CLIENT_NODES[t % len(CLIENT_NODES)], follows=True, reads_only=False) for t in range(WRITERS)]
    hosts = {name: backend.client_host(name) for name in CLIENT_NODES}
    for name, host in hosts.items():
        await host.open(subject.client_module, [p for p in placed if p.client_node == name], peers, config)
    keys, counted = workload.keys(), [0]
    for key in keys:
        made = await hosts[CLIENT_NODES[0]].invoke(0, Request("create", key), _PATIENCE_S)
        if made.type is not Type.OK:
            raise SystemExit(f"register {key} could not be created: {made.error}")
    begin = time.monotonic() + SETTLE_S
    end = begin + seconds

    async def writer(placement: Placement) -> None:
        value = placement.thread
        while time.monotonic() < end:
            value += WRITERS
            request = Request("write", keys[placement.thread % len(keys)], value)
            answer = await hosts[placement.client_node].invoke(placement.thread, request, _PATIENCE_S)
            counted[0] += answer.type is Type.OK and begin <= time.monotonic() < end

    await asyncio.gather(*map(writer, placed))
    return counted[0] / seconds


if __name__ == "__main__":
    main()
