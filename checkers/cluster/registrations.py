"""What follows from how brokers registered, by their own traces and by the committed records.

    eligible   A broker that registers without the epoch that the log has of its former incarnation did not leave in
               order, and may have lost data (KIP-966).  While it is fenced after that, it is no eligible leader: the
               records of its registration take it out, and only a broker that was in sync becomes one.
    refused    An incarnation is registered, and each controller of the run knew that before it was asked once more.
               So it may not be refused because of another incarnation (KAFKA-16952).

Only what a broker reported is judged.  Where its row or the record of its former registration is missing, nothing is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from checkers.cluster.broker_traces import AppendTimes, CommittedRecord, NodeTrace, RefusedRegistration, Registered

UNKNOWN_EPOCH = -1


class CameBack(NamedTuple):
    """A broker came back uncleanly.  record: of its registration.  partitions: of which it stays an eligible leader."""

    record: CommittedRecord
    trace: NodeTrace
    answer: Registered
    partitions: Sequence[str]


class Registrations:
    """Takes committed records in the order of their offsets.  came_back: how many registrations were unclean."""

    def __init__(self, traces: Mapping[str, NodeTrace]) -> None:
        self._answers = {
            (answer.broker_epoch, answer.incarnation): (trace, answer)
            for trace in traces.values()
            for answer in trace.registrations()
        }
        self._epochs: dict[int, int] = {}  # of the brokers that are registered
        self._incarnations: dict[int, str] = {}
        self._lost: dict[int, CameBack] = {}  # came back uncleanly, and is fenced since then
        self._eligible: dict[str, frozenset[int]] = {}
        self.came_back = 0

    def record(self, record: CommittedRecord) -> CameBack | None:
        """The broker that is unfenced by this record, if it must not be eligible and is."""
        match record.kind:
            case "register broker":
                self._register(record)
            case "unregister broker":
                self._epochs.pop(record.broker, None)
                self._lost.pop(record.broker, None)
            case "partition" | "change partition":
                if "elr" in record.fields:
                    self._eligible[record.about] = frozenset(record.fields["elr"] or ())
            case "remove topic":
                for partition in [each for each in self._eligible if each.startswith(f"{record.about}/")]:
                    del self._eligible[partition]
        lost = self._lost.pop(record.broker, None) if record.unfences else None
        if lost is None:
            return None
        stays = sorted(about for about, eligible in self._eligible.items() if record.broker in eligible)
        return lost._replace(partitions=stays) if stays else None

    def _register(self, record: CommittedRecord) -> None:
        broker, epoch, incarnation = record.broker, record.fields["epoch"], record.fields["incarnation"]
        former, same = self._epochs.get(broker), self._incarnations.get(broker) == incarnation
        self._epochs[broker], self._incarnations[broker] = epoch, incarnation
        if same:
            return
        self._lost.pop(broker, None)
        trace, answer = self._answers.get((epoch, incarnation), (None, None))
        if trace is None or answer is None or epoch != record.offset:
            return
        if answer.previous_epoch == UNKNOWN_EPOCH or (former is not None and answer.previous_epoch != former):
            self.came_back += 1
            self._lost[broker] = CameBack(record, trace, answer, ())


def refused_themselves(
    records: Sequence[CommittedRecord], traces: Mapping[str, NodeTrace], appended: AppendTimes
) -> Iterator[tuple[CommittedRecord, NodeTrace, RefusedRegistration]]:
    """Registrations of incarnations that were refused later, though every controller knew of them."""
    about = [each for each in records if each.kind in ("register broker", "unregister broker")]
    controllers = [trace for trace in traces.values() if any(trace.offices())]
    for trace in traces.values():
        for refusal in trace.refusals():
            mine = next((each for each in about if each.fields.get("incarnation") == refusal.incarnation), None)
            if mine is None or not controllers:
                continue
            known = all(each.knew(refusal.sent_ns) > mine.offset for each in controllers)
            if known and not _replaced(mine, about, appended, refusal.at_ns):
                yield mine, trace, refusal


def _replaced(mine: CommittedRecord, about: Sequence[CommittedRecord], appended: AppendTimes, at_ns: int) -> bool:
    """Whether a later record about this broker may have been there at that time."""
    for later in about:
        other = later.offset > mine.offset and later.broker == mine.broker
        if other and later.fields.get("incarnation") != mine.fields["incarnation"]:
            found = appended.of(later)
            if found is None or found[1] <= at_ns:
                return True
    return False
