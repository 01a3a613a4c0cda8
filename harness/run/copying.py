"""Copies of the nodes' data directories: just before each heal, at the end, and regularly where nodes cut their logs.

A data directory is copied with its process stopped, one node after another, each for well under 200 ms.  A live copy
can mix the states before and after a truncation, and raise a false alarm.  A process already stopped or dead stays so.
Copies are taken before each heal, because afterwards the uncommitted tails are gone and all logs agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict

from checkers.record.copies import Copy
from harness.run.clock import RunClock
from harness.run.run_folder import RunFolder
from system_under_test.subject import Collected, Node


class Copies:
    """Numbers copies from 0; `taken` lists every node's part of every copy."""

    def __init__(
        self,
        run: RunFolder,
        nodes: Sequence[Node],
        clock: RunClock,
        now_ns: Callable[[], int],
        copy: Callable[[Node, str], Awaitable[int]] = lambda node, aside: node.copy_data(aside),
    ) -> None:
        """now_ns: the time since the test began.  copy: as `Subject.copy`."""
        self._copy = copy
        self._clock = clock
        self._now_ns = now_ns
        self._run = run
        self._nodes = nodes
        self._count = 0
        self.taken: list[Collected] = []
        self.longest_stop_s = 0.0
        self._one_at_a_time = asyncio.Lock()

    async def take(self, when: str, *, leave_stopped: bool = False) -> list[Collected]:
        """Copy every node's data directory into `nodes/<n>/copies/<number>/`; what was taken.

        leave_stopped: for the final copy, after which nothing may change any more.
        """
        async with self._one_at_a_time:
            return await self._take(when, leave_stopped)

    async def _take(self, when: str, leave_stopped: bool) -> list[Collected]:
        number, self._count = self._count, self._count + 1
        for node in self._nodes:
            aside = f"{node.log_dir}/copy-{number}"
            await node.remove(aside)
            async with node.alone:  # no fault may stop or continue the process meanwhile
                state = await node.state()
                began = self._clock.monotonic_s()
                if state == "running":
                    await node.signal("STOP")
                try:
                    trace_size_bytes = await self._copy(node, aside)
                    taken_ns = self._now_ns()
                finally:
                    if state == "running" and not leave_stopped:
                        await node.signal("CONT")
                self.longest_stop_s = max(self.longest_stop_s, self._clock.monotonic_s() - began)
            folder = self._run.node(node.name) / "copies" / str(number)
            await node.copy_out(aside, folder)
            await node.remove(aside)
            self.taken.append(Collected(number, when, node.name, state, folder, trace_size_bytes, taken_ns))
        return [copy for copy in self.taken if copy.copy == number]

    def as_recorded(self, taken: Sequence[Collected]) -> tuple[Copy, ...]:
        """These copies as the journal holds them."""
        return tuple(Copy(**{**asdict(c), "folder": str(c.folder.relative_to(self._run.root))}) for c in taken)
