"""Set-up: servers are installed and started until they are ready and led, clients are opened, objects are made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from checkers.base import clocks
from harness.run.clock import RunClock
from harness.run.context import RunContext
from harness.run.watching.leaders_and_stalls import RunWatch
from harness.spec import CLIENT_NODES
from system_under_test.client import Placement
from system_under_test.subject import Node, Subject

READY_LIMIT_S = 180.0


class SetUpFailed(RuntimeError):
    """The subject never became ready; the message names what was awaited."""


async def set_up(run: RunContext) -> None:
    """Returns when the main phase may begin.  Raises SetUpFailed."""
    loading = asyncio.gather(*(host.load(run.subject.client_module) for host in run.hosts.values()))
    try:
        await _start_servers(run)
        await loading
    finally:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
    await _open_clients(run)
    made = await run.interpreter.until_ok(run.workload.set_up(), READY_LIMIT_S, run.progress.detail)
    if reasons := {why: key for key, why in made.items() if why != "ok"}:
        why, key = next(iter(reasons.items()))
        count = sum(words != "ok" for words in made.values())
        raise SetUpFailed(f"{count} of {len(made)} keys could not be created; {key}: {why}")


async def _start_servers(run: RunContext) -> None:
    """Returns when they are ready and, where they elect one, have a leader.  Raises SetUpFailed."""
    subject = run.subject
    await subject.install(run.nodes, seed=run.spec.seed, bug=run.spec.bug)
    await asyncio.gather(*(subject.start(node) for node in run.nodes))
    if run.online is not None and subject.declares.kraft_steps:
        started_on = clocks.started_on(run.header)
        lives = {node.name: subject.live(node, started_on(node.name)) for node in run.nodes}
        run.online.follow(lives, one_clock=clocks.one_clock(run.header))
    await until_ready(subject, run.nodes, run.clock, run.progress.detail)
    if subject.declares.elections:
        await until_led(run.watch, len(run.nodes), run.clock)


async def until_ready(subject: Subject, nodes: Sequence[Node], clock: RunClock, detail: Callable[[str], None]) -> None:
    """Returns when the subject says so.  detail: takes what is missing.  Raises SetUpFailed.

    Set-up starts every server once.  So it is over as soon as one is dead."""
    until_s = clock.monotonic_s() + READY_LIMIT_S
    while (missing := await subject.ready(nodes)) is not None:
        if clock.monotonic_s() > until_s:
            raise SetUpFailed(f"not ready within {READY_LIMIT_S:g} s: {missing}")
        if "dead" in await asyncio.gather(*(node.state() for node in nodes)):
            raise SetUpFailed(await subject.ready(nodes) or missing)
        detail(missing)
        await clock.sleep(0.1)


async def until_led(watch: RunWatch, node_count: int, clock: RunClock) -> None:
    """Returns when every node has answered and one leads.  Raises SetUpFailed."""
    until_s = clock.monotonic_s() + READY_LIMIT_S
    while clock.monotonic_s() < until_s:
        await watch.ask()
        if watch.leader() is not None and len(watch.statuses) == node_count:
            return
        await clock.sleep(0.05)
    heard = ", ".join(f"{s.node} {s.role} in epoch {s.epoch}" for s in watch.statuses.values())
    raise SetUpFailed(f"no leader within {READY_LIMIT_S:g} s; heard of: {heard or 'no node at all'}")


def clients_of(run: RunContext) -> tuple[str, dict[str, str], dict[str, Any]]:
    """The module of the clients, the address of each server, and the config of the clients; see `ClientFactory`."""
    subject, spec = run.subject, run.spec
    peers = {node.name: f"{node.address}:{subject.port}" for node in run.nodes}
    config = {**subject.client_config(seed=spec.seed, bug=spec.bug), "functions": dict(run.workload.functions)}
    if run.workload.own_functions:
        config["own_functions"] = {name: asdict(stated) for name, stated in run.workload.own_functions.items()}
    if run.workload.each_server:
        config["each_server"] = True
    if subject.declares.forwards:
        config["through_members"] = True
    return subject.client_module, peers, config


def background_of(run: RunContext) -> dict[Placement, str]:
    """Return each client of the workload's background load, and the function that it calls."""
    functions = [name for name, count in run.workload.background.items() for _ in range(count)]
    numbered = enumerate(functions, run.spec.concurrency)
    return {Placement(n, CLIENT_NODES[n % len(CLIENT_NODES)], follows=True, reads_only=True): f for n, f in numbered}


async def _open_clients(run: RunContext) -> None:
    module, peers, config = clients_of(run)

    def on(client_node: str) -> list[Placement]:
        placements = (*run.spec.placements(), *background_of(run))
        return [placement for placement in placements if placement.client_node == client_node]

    opening = (host.open(module, on(name), peers, config) for name, host in run.hosts.items())
    await asyncio.gather(*opening)
