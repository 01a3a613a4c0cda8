"""Packets and resets between containers: each impairment shows in what arrives, and goes again."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from cluster_links import LISTENER, TALKER, directed_links, silent_links, until_file_holds
from docker_things import forget_neighbours, left_of, needs_docker

from harness.backends.backend import ClusterSpec
from harness.backends.docker.backend import DockerBackend
from nemesis.cluster import PACKETS, REJECT, Link

pytestmark = [*needs_docker, pytest.mark.asyncio(loop_scope="module")]

SERVERS, CLIENTS = ("n1", "n2", "n3"), ("c1",)
BURST = 200


@asynccontextmanager
async def a_cluster(run_id: str) -> AsyncIterator[DockerBackend]:
    backend = DockerBackend(ClusterSpec(run_id, SERVERS, CLIENTS, seed=1))
    try:
        await backend.create(print)
        yield backend
    finally:
        await backend.destroy()
    assert left_of(run_id) == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def switched() -> AsyncIterator[DockerBackend]:
    async with a_cluster(f"switched-{os.getpid()}") as cluster:
        yield cluster


async def test_the_switch_took_the_links_over_and_carries_all_of_them(switched: DockerBackend) -> None:
    assert (switched.lacks(PACKETS), switched.lacks(REJECT)) == ("", "")
    assert await silent_links(switched) == set()


async def test_nodes_that_forgot_each_other_ask_the_switch(switched: DockerBackend) -> None:
    for node in (*SERVERS, *CLIENTS):
        await asyncio.to_thread(forget_neighbours, switched.spec.run_id, node)
    await switched.cut({("n1", "n2")})
    assert await silent_links(switched) == {("n1", "n2")}
    await switched.cut(())
    assert await silent_links(switched) == set()


@pytest.mark.parametrize(
    ("impairment", "figure", "least", "most"),
    [
        ({"loss": 0.2}, "lost", 0.08, 0.35),
        ({"corrupt": 0.2}, "lost", 0.08, 0.35),
        ({"delay_s": 0.2, "jitter_s": 0.1}, "delay_ms", 190.0, 60_000.0),
        ({"delay_s": 0.03, "reorder": 0.3}, "reordered", 0.02, 1.0),
        ({"duplicate": 0.3}, "repeated", 0.15, 0.5),
    ],
)
async def test_what_was_ordered_is_measured_and_only_there(
    switched: DockerBackend, impairment: dict[str, float], figure: str, least: float, most: float
) -> None:
    await switched.impair({("n1", "n2"): impairment}, 7)
    try:
        await shows(switched, ("n1", "n2"), lambda seen: least <= seen[figure] <= most)
        await shows(switched, ("n2", "n1"), lambda seen: not least <= seen[figure] <= most)
    finally:
        await switched.impair({}, 0)
    await shows(switched, ("n1", "n2"), lambda seen: not least <= seen[figure] <= most)


async def shows(cluster: DockerBackend, link: Link, fits: Callable[[Mapping[str, float]], bool]) -> None:
    """Some burst shows it.  A busy machine holds datagrams up, so the last ones of a burst get more time."""
    measured = []
    for wait_s in (0.6, 2.0, *[6.0] * 10):
        measured.append(await figures(cluster, link, wait_s))
        if fits(measured[-1]):
            return
    pytest.fail(f"{link}: {measured}")


async def figures(cluster: DockerBackend, link: Link, wait_s: float) -> Mapping[str, float]:
    seen = await cluster.try_link(link, BURST, 0.002, wait_s)
    shares = {name: seen[name] / seen["sent"] for name in ("reordered", "repeated")}
    return {"lost": 1 - seen["received"] / seen["sent"], "delay_ms": seen["delay_ms"], **shares}


async def test_an_unknown_node_or_an_impossible_impairment_is_refused(switched: DockerBackend) -> None:
    with pytest.raises(KeyError):
        await switched.impair({("n1", "n9"): {"loss": 0.1}}, 1)
    with pytest.raises(OSError, match="loss must be from 0 to 1"):
        await switched.impair({("n1", "n2"): {"loss": 1.5}}, 1)
    assert await silent_links(switched) == set()


async def test_a_rejected_link_resets_tcp_and_a_cut_one_does_not(switched: DockerBackend) -> None:
    cluster = switched
    n1, n2 = cluster.node("n1"), cluster.node("n2")
    output = f"{n1.log_dir}/talker.log"

    async def listen() -> None:
        await n2.start(["python3", "-c", LISTENER, n2.address], output=f"{n2.log_dir}/listener.log")

    async def talk() -> None:
        await n1.start(["python3", "-c", TALKER, n2.address], output=output)

    await listen()
    await until_file_holds(n2, f"{n2.log_dir}/listener.log", b"listens\n")
    await talk()
    both = {("n1", "n2"), ("n2", "n1")}
    try:
        await until_file_holds(n1, output, b"connected\n")
        await cluster.cut(both)
        assert await silent_links(cluster) == both
        assert await n1.read(output) == b"connected\n", "a silent cut lets the connection wait"
        await cluster.cut(both, both)
        assert await silent_links(cluster) == both
        await until_file_holds(n1, output, b"connected\nreset\n")
    finally:
        await cluster.cut(())
        for node in ("n1", "n2"):
            await cluster.kill(node)
            await cluster.node(node).run(["rm", "-f", output])
    assert await silent_links(cluster) == set()
    await listen()
    await until_file_holds(n2, f"{n2.log_dir}/listener.log", b"listens\nlistens\n")
    await talk()
    await until_file_holds(n1, output, b"connected\n")
    assert await silent_links(cluster) == set()
    assert await n1.read(output) == b"connected\n", "no reset comes after the heal"
    for node in ("n1", "n2"):
        await cluster.kill(node)


async def test_a_dead_helper_leaves_everything_cut() -> None:
    """The switch ends with it, and fails closed."""
    async with a_cluster(f"closed-{os.getpid()}") as cluster:
        kill = ["docker", "kill", f"krucible-{cluster.spec.run_id}-helper"]
        await asyncio.to_thread(subprocess.run, kill, check=True, capture_output=True, timeout=120)
        assert await silent_links(cluster) == set(directed_links([*SERVERS, *CLIENTS]))
