"""The schedule that a run plays: a file's, or the one its nemesis deals, and what a backend must offer for it.

A file is one that a user wrote, or the `schedule.json` of an earlier run.  A card without a resolved fault is resolved
anew: against the leader it finds the node that leads then.  A card with one hits the very nodes and links that it
names.  Where nothing is fixed, the deck deals cards by what the faults have met so far (`Dealing`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from checkers.record.faults import Card, FaultRecord
from checkers.record.files import BrokenFile, regular
from harness.spec import CLIENT_NODES, Spec
from nemesis.catalog import NONE, kind_named, kinds_of
from nemesis.cluster import CLIENT_PROCESSES
from nemesis.coverage import FaultCoverage, Look
from nemesis.deck import Dealer
from nemesis.kind import Kind
from nemesis.schedule_files import (
    BadSchedule,
    Schedule,
    parse_schedule,
)
from system_under_test.subject import Declares, NodeStatus


def dealer_of(spec: Spec, declares: Declares, time_limit_s: float | None = None) -> Dealer | None:
    """Return what deals the cards of this run, or of one of another length; None where nothing is dealt.

    A subject that does not report who leads gets no card that names the leader: such a card would only be skipped."""
    if not declares.faults or spec.schedule is not None or spec.nemesis == NONE:
        return None
    limit_s = spec.time_limit_s if time_limit_s is None else time_limit_s
    holds = spec.lengthened(declares.failover_s)
    has = {"leaders": declares.leaders, "fsyncs": declares.fsyncs}
    lacking = [name for name, there in has.items() if not there]
    return Dealer(spec.nemesis, spec.servers, limit_s, spec.rng("deck"), lacking=lacking, holds=holds)


def dealt(spec: Spec, declares: Declares, time_limit_s: float | None = None) -> list[Card]:
    """The cards of a run that meets what they aim at.  The first ones are those of every run with this seed."""
    dealer = dealer_of(spec, declares, time_limit_s)
    while dealer is not None and dealer.next():
        pass
    return dealer.cards if dealer is not None else []


def schedule_of(spec: Spec) -> Schedule:
    """Return what a schedule file fixes for this run.  Raises BadSchedule for one that cannot be used."""
    if spec.schedule is None:
        return Schedule((), {})
    return read_schedule(Path(spec.schedule), (*spec.servers, *CLIENT_NODES))


def capabilities_of(spec: Spec) -> frozenset[str]:
    """Return what the kinds of fault of this run need of its backend.  Raises BadSchedule.

    Of what only some targets need, clients in processes of their own are named too: they cost something on every node.
    """
    of_targets = {need for kind in _kinds(spec) for target in kind.targets.values() for need in target.needs}
    return needs_of_kinds(spec) | (of_targets & {CLIENT_PROCESSES})


def needs_of_kinds(spec: Spec) -> frozenset[str]:
    """Without which no fault of some kind of this run can be injected.  Raises BadSchedule."""
    return frozenset(need for kind in _kinds(spec) for need in kind.needs)


def _kinds(spec: Spec) -> Sequence[Kind]:
    if spec.schedule is None:
        return kinds_of(spec.nemesis)
    return [kind_named(card.kind) for card in read_schedule(Path(spec.schedule)).cards]


def read_schedule(path: Path, nodes: Collection[str] = ()) -> Schedule:
    """The schedule in this file.  Raises BadSchedule in one sentence that names the file, the card and the field.

    nodes: every server and client node of the cluster; a fault that names another is refused.  () = do not check.
    """
    try:
        schedule = parse_schedule(regular(path).read_text())
    except (OSError, UnicodeDecodeError, BrokenFile) as problem:
        raise BadSchedule(f"{path}: it cannot be read: {problem}") from problem
    except BadSchedule as problem:
        raise BadSchedule(f"{path}: {problem}") from problem
    for place, card in enumerate(schedule.cards, start=1):
        fault = schedule.faults.get(card.number)
        named = {*fault.nodes, *(end for link in fault.cut for end in link)} if fault else set()
        if nodes and (strangers := sorted(named - set(nodes))):
            raise BadSchedule(f"{path}: card {place}: its field 'fault' names {strangers[0]!r}, which is no node here")
    return schedule


class Dealing:
    """schedule: what stands fixed before the run; empty where cards are dealt.  Raises BadSchedule.

    dealt: called with all cards so far, each time that more are dealt."""

    def __init__(self, spec: Spec, declares: Declares, dealt: Callable[[Sequence[Card]], None]) -> None:
        self.coverage = FaultCoverage()
        self.schedule: Schedule = schedule_of(spec)
        self._dealer = dealer_of(spec, declares)
        self._dealt = dealt
        self._servers = spec.servers

    @property
    def breaks_things(self) -> bool:
        return bool(self.schedule.cards) or self._dealer is not None

    def next(self) -> Sequence[Card]:
        """The cards of the next play; none when no time is left.  Until something is met, what cards aim at counts."""
        if self._dealer is None:
            return ()
        cards = self._dealer.next(self.coverage.met or None)
        self._dealt(self._dealer.cards)
        return cards

    def look(self, statuses: Sequence[NodeStatus], records: Collection[FaultRecord]) -> None:
        """Return what the nodes report now, and every fault so far."""
        in_force = {r.card.number: r.fault for r in records if r.injected_ns >= 0 > r.heal_ordered_ns}
        self.coverage.see(Look(self._servers, CLIENT_NODES, statuses, in_force))
