"""The last phase: clients are closed, and what every node holds is copied; and copies of logs before that."""

from __future__ import annotations

import asyncio

from checkers.record.journal import Copied, Copying
from harness.run.context import RunContext
from system_under_test.subject import Collected


async def collect(run: RunContext) -> None:
    for host in run.hosts.values():
        await host.close()
    if run.subject.declares.logs:
        await copy_logs(run, "final", leave_stopped=True)
    for node in run.nodes:
        await node.signal("KILL")
        await run.subject.collect(node, run.folder.node(node.name))


async def copy_logs(run: RunContext, when: str, *, leave_stopped: bool = False) -> None:
    """Copy the data directory of every node now, and collect its logs and traces.  when: the reason, as recorded."""
    run.recorder.enter(Copying(when))
    taken: list[Collected] = []
    try:
        taken = await run.copies.take(when, leave_stopped=leave_stopped)
    finally:
        run.recorder.enter(Copied(when, run.copies.as_recorded(taken)))
    if run.online is not None:
        run.online.copied(taken)
    await asyncio.gather(*(run.subject.collect(n, run.folder.node(n.name)) for n in run.nodes))
