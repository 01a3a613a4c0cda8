"""Waits until a system that was just started is ready and, if it elects a leader, has one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from harness.run.watching.leaders_and_stalls import Watch
from system_under_test.subject import Node, Subject

READY_LIMIT_S = 180.0


class SetUpFailed(RuntimeError):
    """The subject never became ready; the message names what was awaited."""


async def until_ready(subject: Subject, nodes: Sequence[Node], detail: Callable[[str], None]) -> None:
    """Returns when the subject says so.  detail: takes what is missing.  Raises SetUpFailed.

    Set-up starts every server once.  So it is over as soon as one is dead."""
    until = time.monotonic() + READY_LIMIT_S
    while (missing := await subject.ready(nodes)) is not None:
        if time.monotonic() > until:
            raise SetUpFailed(f"not ready within {READY_LIMIT_S:g} s: {missing}")
        if "dead" in await asyncio.gather(*(node.state() for node in nodes)):
            raise SetUpFailed(await subject.ready(nodes) or missing)
        detail(missing)
        await asyncio.sleep(0.1)


async def until_led(watch: Watch, node_count: int) -> None:
    """Returns when every node has answered and one leads.  Raises SetUpFailed."""
    until = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < until:
        await watch.ask()
        if watch.leader() is not None and len(watch.statuses) == node_count:
            return
        await asyncio.sleep(0.05)
    heard = ", ".join(f"{s.node} {s.role} in epoch {s.epoch}" for s in watch.statuses.values())
    raise SetUpFailed(f"no leader within {READY_LIMIT_S:g} s; heard of: {heard or 'no node at all'}")
