"""The recovery phase: all that is broken is healed and proven healed, and every live node must catch up in time.

What this phase looked at is recorded for each server.  A system of one's own may know so little of itself that only the
states of its processes were looked at.  Those servers are listed as `without_evidence`, and the checker looks for
answers that clients got through them.

The limit is one of time, and a server that gets no processor time cannot keep it.  Agents send beacons in a steady
beat.  So the share of beats that a node's agent sent shows how much its node ran; the checker demands enough.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from checkers.record.outcome import Recovery
from harness.plain_words import listed
from harness.run.clock import RunClock
from harness.run.context import RunContext
from nemesis.cluster import CALM_INTERVAL_MS, Cluster, Marks
from nemesis.play import heal_all
from system_under_test.own.read_own_system import CodeMistake
from system_under_test.subject import Node, NotKnown, ProcessState, Subject

UNANSWERED = "caught_up() has not answered yet"
_NUMBER = re.compile(r"\d+(\.\d+)?\b")
"""Reasons that differ in a number alone, such as an offset, are one reason."""


async def recover(run: RunContext) -> None:
    """Heal, and wait until every live node has caught up or the limit is over."""
    killed = {node for record in run.records.values() for node in record.killed}
    recovery = SystemRecovery(
        run.subject, run.nodes, run.spec.keys, run.spec.recovery_limit_s, run.clock, run.progress.detail
    )
    try:
        await recovery.run(run.backend, killed)
    finally:
        run.outcome = replace(run.outcome, recovery=recovery.found)


class SystemRecovery:
    """found: what the journal keeps of it; complete only when `run` has returned.  detail: takes what is awaited."""

    def __init__(
        self,
        subject: Subject,
        nodes: Sequence[Node],
        keys: int,
        limit_s: float,
        clock: RunClock,
        detail: Callable[[str], None],
    ) -> None:
        self._subject = subject
        self._nodes = nodes
        self._keys = keys
        self._limit_s = limit_s
        self._clock = clock
        self._detail = detail
        self.found = Recovery(needed=bool(nodes), limit_s=limit_s)

    async def run(self, cluster: Cluster, restart: Collection[str]) -> None:
        """restart: the servers that a fault killed."""
        if not self._nodes:
            return
        proof = await heal_all(cluster, restart=restart)
        self.found = replace(self.found, proof=proof)
        began, first = self._clock.monotonic_s(), await cluster.mark()
        waiting_for: str | None = UNANSWERED
        reasons, not_known = WaitReasons(), False
        while waiting_for is not None and (left_s := began + self._limit_s - self._clock.monotonic_s()) > 0:
            try:
                async with asyncio.timeout(left_s) as limit:
                    waiting_for, not_known = await self._subject.caught_up(self._nodes, self._keys), False
            except CodeMistake as mistake:  # the same code fails again, and what the run has shown is judged
                waiting_for, not_known = str(mistake), True
                break
            except NotKnown as problem:  # an unknown state violates nothing, and is looked at again
                waiting_for, not_known = str(problem), True
            except TimeoutError:
                if not limit.expired():
                    raise
                not_known |= waiting_for == UNANSWERED
                break  # what was waited for before stays so
            states, voters = await self._states(), self._subject.declares.voters(self._nodes)
            if dead := _majority_dead({node.name: states[node.name] for node in voters}):
                not_known = False
                waiting_for = f"{dead}: no majority is left that could recover"
                break
            if waiting_for is not None:
                reasons.lasted(waiting_for, self._clock.monotonic_s() - began)
                self._detail(waiting_for)
                await self._clock.sleep(0.1)
        seconds = self._clock.monotonic_s() - began
        if waiting_for is not None:
            reasons.lasted(waiting_for, seconds)
        self.found = replace(
            self.found,
            recovered=waiting_for is None,
            seconds=round(seconds, 3),
            waiting_for=reasons.words() if waiting_for is not None else "",
            not_known=not_known,
            beats_sent=self._beats_sent(first, await cluster.mark(), seconds),
        )
        self._look_at(await self._states())

    def _beats_sent(self, first: Marks, last: Marks, seconds: float) -> dict[str, float]:
        """Server -> of the beats that were due in this time, the share that its agent sent."""
        due = max(1.0, seconds * 1e3 / CALM_INTERVAL_MS)
        sent: dict[str, list[int]] = {}
        for link in first.keys() & last.keys():
            sent.setdefault(link[0], []).append(last[link] - first[link])
        return {node.name: round(max(sent[node.name]) / due, 3) for node in self._nodes if node.name in sent}

    async def _states(self) -> dict[str, ProcessState]:
        states = await asyncio.gather(*(node.state() for node in self._nodes))
        return {node.name: state for node, state in zip(self._nodes, states, strict=True)}

    def _look_at(self, states: Mapping[str, ProcessState]) -> None:
        """Add what was looked at of each server, and the live servers of which nothing but the process was."""
        looked = self._subject.looked_at([name for name, state in states.items() if state != "dead"])
        words = {name: looked[name].words if name in looked else () for name in states}
        self.found = replace(
            self.found,
            looked_at={name: (f"process {state}", *words[name]) for name, state in states.items()},
            without_evidence=tuple(name for name, seen in looked.items() if not seen.evidence),
        )


class WaitReasons:
    """What recovery waited for, and for how long.  The last poll alone may show a passing error."""

    def __init__(self) -> None:
        self._lasted: Counter[str] = Counter()
        self._words: dict[str, str] = {}
        self._last, self._until_s = "", 0.0

    def lasted(self, words: str, until_s: float) -> None:
        """Add the time from the poll before to until_s, in seconds since recovery began."""
        self._last = _NUMBER.sub("#", words)
        self._words[self._last] = words
        self._lasted[self._last] += round((until_s - self._until_s) * 1e9)
        self._until_s = until_s

    def words(self) -> str:
        """Return the reason that lasted longest; with its share of the time, and the last one, if that differs."""
        longest = max(self._lasted, key=lambda reason: (self._lasted[reason], reason == self._last))
        if longest == self._last:
            return self._words[longest]
        share = self._lasted[longest] / max(self._lasted.total(), 1)
        return f"{self._words[longest]} (for {share:.0%} of the time; at the end: {self._words[self._last]})"


def _majority_dead(states: Mapping[str, ProcessState]) -> str:
    """The servers that died unexpectedly, if they are a majority: they stay dead, so waiting is useless."""
    dead = [name for name, state in states.items() if state == "dead"]
    return f"{listed(dead)} died" if 2 * len(dead) > len(states) else ""
