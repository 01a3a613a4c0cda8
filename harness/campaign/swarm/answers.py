"""Numbers that clients were answered: each is a row of its own, and each kind of number has its demands.

    kind           demands
    producer ids   unique, growing, dense: blocks of 1,000 ids that follow each other
    epoch          growing: the epoch of the leader that acknowledged an operation
    offset         growing: where the records ended that the leader had applied
    settings       unique: each change of a broker config and a feature level raises both, and answers with the number
    settings seen  growing: what a change made of them, or a read showed

growing   a request that began after another one was answered gets no smaller number
dense     a block that nobody was answered belongs to a request whose outcome is unknown

Epochs of brokers are unique and growing, too: `watch_brokers` sees them answered.

Answers prove these rules alone.  So they hold also where no record and no trace shows what a client was given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from checkers.base.history import Type
from system_under_test.kraft.controller.partition_requests import PRODUCER_IDS_OF_A_BLOCK

PRODUCER_ID, EPOCH, OFFSET = "producer ids", "epoch", "offset"
SETTING, SETTING_SEEN = "settings", "settings seen"


@dataclass(frozen=True, slots=True)
class NumberDemands:
    """step: distance of two numbers that follow each other; 0: the numbers of this kind are not dense."""

    unique: bool = False
    step: int = 0


DEMANDS: Mapping[str, NumberDemands] = {
    PRODUCER_ID: NumberDemands(unique=True, step=PRODUCER_IDS_OF_A_BLOCK),
    EPOCH: NumberDemands(),
    OFFSET: NumberDemands(),
    SETTING: NumberDemands(unique=True),
    SETTING_SEEN: NumberDemands(),
}
ANSWERED_TWICE, WENT_BACK, LEFT_OUT = "one number answered twice", "answered numbers go back", "a number is left out"


@dataclass(slots=True)
class NumberAnswered:
    """began, ended: places in the one order of all invokes and completions.  node: that answered.

    type: OK with a number, FAIL (certainly none was given) or INFO (unknown)."""

    kind: str
    began: int
    node: str
    ended: int = -1
    type: Type = Type.INFO
    number: int = 0

    def row(self) -> tuple[str, int, str, int, int, int]:
        return self.kind, self.began, self.node, self.ended, int(self.type), self.number


def wrong_numbers(rows: Sequence[NumberAnswered]) -> Iterator[tuple[str, str]]:
    """Yield each rule that the answers break, with what happened: at most one of a rule and kind."""
    for kind, demands in DEMANDS.items():
        given = [row for row in rows if row.kind == kind and row.type is Type.OK]
        counted = Counter(row.number for row in given)
        if demands.unique and (twice := sorted(number for number, count in counted.items() if count > 1)):
            nodes = " and ".join(row.node for row in given if row.number == twice[0])
            yield ANSWERED_TWICE, f"{kind} {twice[0]}, by {nodes}"
        yield from _went_back(kind, given)
        if demands.step and given:
            unknown = sum(row.kind == kind and row.type is Type.INFO for row in rows)
            absent = [number for number in range(0, max(counted), demands.step) if number not in counted]
            if len(absent) > unknown:
                what = f"{kind}: nobody was answered {', '.join(map(str, absent[:5]))}"
                yield LEFT_OUT, f"{what}, and only {unknown} requests have an unknown outcome"


def _went_back(kind: str, given: Sequence[NumberAnswered]) -> Iterator[tuple[str, str]]:
    ends = sorted(given, key=lambda row: row.ended)
    done, largest = 0, None
    for row in sorted(given, key=lambda row: row.began):
        while done < len(ends) and ends[done].ended < row.began:
            if largest is None or ends[done].number > largest.number:
                largest = ends[done]
            done += 1
        if largest is not None and row.number < largest.number:
            yield WENT_BACK, f"{kind} {row.number} by {row.node}, after {largest.number} by {largest.node}"
            return
