"""Which deaths of servers, and which complaints in their logs, a fault excuses.

A fault may announce that processes of its nodes may end because of it (`may_die`): a server whose disk fails cannot
know what the disk holds, so it is right to end.  The excuse holds only for nodes of that fault, from its inject to its
heal, and only if its measurements show that it was in force.  Where the fault was ordered and its measurements leave
open what became of it, it is not known whether the death is excused.

A server whose files were damaged may refuse to start again.  Where the fault announces that too (`may_stay_down`), the
excuse holds until the end of the run.

A server that refuses to start may be stopped by the next fault before it has ended by itself.  So an ordered end soon
after the heal of such a fault excuses the words of that process, too.

A server that dies by right may say so in its log.  Such a complaint is excused too, and no other: the same process must
have written it, among its last lines.  A server that complains of something else long before it dies is not excused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from checkers.record.faults import FaultRecord
from checkers.record.outcome import Death
from checkers.run_quality.faults_installed import INSTALLED, SKIPPED, achieved

END_OF_TIME = 1 << 62
LAST_LINES = 100
"""How many lines a dying server may still write after it complained.  Lines of stack traces are not counted."""
_NO_PID = -1
_REFUSAL_NS = 10_000_000_000
"""So long a server with damaged files may take from its start to the end of its refusal."""
_FAILED_ORDER_NS = 120_000_000_000
"""An order that failed may have taken effect so long before it was taken back: no order takes longer."""


@dataclass(frozen=True, slots=True)
class Sorted:
    """Deaths and complaints: which ones no fault excuses, and of which ones that is not known."""

    unexcused: Sequence[Death]
    not_known: Sequence[Death]


class Excuse:
    """Which deaths and refusals a fault explains.

    clock_error_ns: node -> how wrong a
    time of that node may be.  An excuse is longer by this at both ends, so a death at the edge of a fault is excused.
    """

    def __init__(self, records: Sequence[FaultRecord], clock_error_ns: Callable[[str], int]) -> None:
        self._certain: list[tuple[str, int, int]] = []
        self._doubtful: list[tuple[str, int, int]] = []
        self._refusing: list[tuple[str, int, int]] = []  # when a process with damaged files may be refusing to start
        for record in records:
            if not record.may_die:
                continue
            word = achieved(record).word
            for node in record.nodes:
                if word != SKIPPED and (span := _span(record, clock_error_ns(node))) is not None:
                    (self._certain if word == INSTALLED else self._doubtful).append((node, *span))
                    if record.healed and record.may_stay_down:
                        self._refusing.append((node, record.healed_ns, record.healed_ns + _REFUSAL_NS))

    def covers(self, node: str, time_ns: int) -> bool:
        """Whether such a fault held on the node at that time."""
        return _in_one(self._certain, node, time_ns)

    def may_cover(self, node: str, time_ns: int) -> bool:
        """Whether such a fault held on the node at that time, or may have held."""
        return _in_one([*self._certain, *self._doubtful], node, time_ns)

    def sort(self, deaths: Sequence[Death], ordered: Sequence[Death] = ()) -> Sorted:
        """Sort unexpected deaths, and complaints, by what the faults explain of them.

        ordered: the ends that the harness ordered.
        A complaint without a process is one of a server's own words for dying, by the pattern of its subject.  So for
        each excused death of a node, one of these is excused.
        """
        ended = [death for death in deaths if death.time_ns >= 0]
        excused = [death for death in ended if self.covers(death.node, death.time_ns)]
        unexcused = [death for death in ended if not self.may_cover(death.node, death.time_ns)]
        not_known = [death for death in ended if death not in excused and death not in unexcused]
        stopped = [end for end in ordered if _in_one(self._refusing, end.node, end.time_ns)]
        certain = [end for end in stopped if self.covers(end.node, end.time_ns)]
        by_right, doubtful = [*excused, *certain], [*not_known, *(end for end in stopped if end not in certain)]
        processes, perhaps = _processes(by_right), _processes(doubtful)
        left = Counter(death.node for death in by_right)
        left_perhaps = Counter(death.node for death in doubtful)
        nodes = left.keys() | left_perhaps.keys()
        for complaint in (death for death in deaths if death.time_ns < 0):
            node, pid = complaint.node, complaint.pid
            if pid is None and left[node] > 0:
                left[node] -= 1
            elif pid is None and left_perhaps[node] > 0:
                left_perhaps[node] -= 1
                not_known.append(complaint)
            elif pid == _NO_PID and node in nodes:
                not_known.append(complaint)
            elif pid in (None, _NO_PID) or not _among_last_lines(complaint) or (node, pid) not in processes | perhaps:
                unexcused.append(complaint)
            elif (node, pid) in perhaps:
                not_known.append(complaint)
        return Sorted(unexcused, not_known)


def _span(record: FaultRecord, error_ns: int) -> tuple[int, int] | None:
    """From when until when the fault may have held on a node; None if it was never ordered."""
    first_ns = record.began_ns
    if not record.carried_out:
        if record.heal_ordered_ns < 0:
            return None
        first_ns = record.heal_ordered_ns - _FAILED_ORDER_NS
    for_ever = record.may_stay_down or not record.healed
    return first_ns - error_ns, END_OF_TIME if for_ever else record.healed_ns + error_ns


def _in_one(spans: Sequence[tuple[str, int, int]], node: str, time_ns: int) -> bool:
    return any(name == node and began <= time_ns <= healed for name, began, healed in spans)


def _processes(deaths: Sequence[Death]) -> set[tuple[str, int | None]]:
    return {(death.node, death.pid) for death in deaths}


def _among_last_lines(complaint: Death) -> bool:
    return 0 <= complaint.lines_before_end <= LAST_LINES
