"""The cards of a run: those of a schedule file, or those that the deck deals by what the faults have met so far."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from checkers.record.faults import Card, FaultRecord
from harness.run.schedule_to_play import dealer_of, schedule_of
from harness.spec import CLIENT_NODES, Spec
from nemesis.coverage import FaultCoverage, Look
from nemesis.schedule_files import Schedule
from system_under_test.subject import Declares, NodeStatus


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
        """What the nodes report now, and every fault so far."""
        in_force = {r.card.number: r.fault for r in records if r.injected_ns >= 0 > r.heal_ordered_ns}
        self.coverage.see(Look(self._servers, CLIENT_NODES, statuses, in_force))
