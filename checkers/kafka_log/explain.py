"""Anomalies of Kafka's logs in words, with the events of the operations they are about."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkers.base.arrays import Int64
from checkers.base.history import Event
from checkers.base.verdict import Witness
from checkers.kafka_log.columns import KafkaHistory
from checkers.kafka_log.slots import Slots
from checkers.kernels.kafka_log import slots as kinds
from checkers.kernels.kafka_log.slots import Logs

KIND_NAMES: dict[int, str] = {
    kinds.UNSENT_READ: "unsent-read",
    kinds.ABORTED_READ: "G1a",
    kinds.LOST_WRITE: "lost-write",
    kinds.INCONSISTENT_OFFSETS: "inconsistent-offsets",
    kinds.DUPLICATE: "duplicate",
    kinds.PRECOMMITTED_READ: "precommitted-read",
    kinds.INT_POLL_SKIP: "int-poll-skip",
    kinds.INT_NONMONOTONIC_POLL: "int-nonmonotonic-poll",
    kinds.POLL_SKIP: "poll-skip",
    kinds.NONMONOTONIC_POLL: "nonmonotonic-poll",
    kinds.NONMONOTONIC_SEND: "nonmonotonic-send",
    kinds.UNSEEN: "unseen",
    kinds.INT_NONMONOTONIC_SEND: "int-nonmonotonic-send",
    kinds.INT_SEND_SKIP: "int-send-skip",
}

RIGHT: dict[str, str] = {
    "unsent-read": "nothing but what somebody sent",
    "G1a": "nothing of a send that failed",
    "lost-write": "that what was acknowledged is polled before anything that stands behind it",
    "inconsistent-offsets": "one value at each offset, for ever",
    "duplicate": "one offset for what was sent once",
    "precommitted-read": "that a transaction polls its own messages after it committed, if at all",
    "int-poll-skip": "the messages of a log one after another, none left out",
    "int-nonmonotonic-poll": "the messages of a log in the order of their offsets",
    "poll-skip": "that a consumer goes on where it had stopped",
    "nonmonotonic-poll": "that a consumer goes on behind where it had stopped",
    "nonmonotonic-send": "that what a process sends later stands at a later offset",
    "unseen": "that somebody polls in the end what was acknowledged",
    "int-nonmonotonic-send": "that what a transaction sends later stands at a later offset",
    "int-send-skip": "the messages of a transaction one after another",
}
"""What should have been, per anomaly; of a cycle the same can be said of all."""

_CYCLE_RIGHT = "an order in which each comes after all that it depends on; there is none"
_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class Seen:
    """All that words are made from."""

    history: KafkaHistory
    logs: Logs
    slots: Slots

    def value(self, message: int) -> str:
        return repr(self.history.values(message))

    def key(self, message: int) -> str:
        return self.history.keys[int(self.history.columns.key_of[message])]

    def who(self, messages: Iterable[int]) -> list[int]:
        """Who sent these messages, and who first polled them."""
        asked = list(messages)
        found = [int(self.logs.writer[m]) for m in asked] + [int(self.logs.reader[m]) for m in asked]
        return [o for o in found if o >= 0]

    def placed(self) -> tuple[Int64, Int64]:
        """(slots, messages) of all that stands certainly in a log, those polled first."""
        columns = self.history.columns
        sender = np.repeat(np.arange(len(columns.status)), np.diff(columns.send_first))
        sure = self.logs.happened[sender]
        slot = np.concatenate([self.slots.of_polled, self.slots.of_sent[sure]])
        message = np.concatenate([columns.polled, columns.sent[sure]]).astype(np.int64)
        return slot[slot >= 0], message[slot >= 0]


def explain(seen: Seen, kind: int, sample: tuple[int, int, int, int]) -> Witness:
    words, operations = _WORDS[kind](seen, *sample)
    return witness(seen.history, KIND_NAMES[kind], words, operations)


def witness(
    history: KafkaHistory, name: str, words: str, operations: Iterable[int], facts: dict[str, Any] | None = None
) -> Witness:
    """The sentence and the events of the operations it is about, in index order, each once."""
    events = {e.index: e for o in operations for e in history.events(o)}
    rows = [{c: getattr(e, c) for c in Event.__slots__} | {"type": int(e.type)} for e in events.values()]
    in_order = tuple(sorted(rows, key=lambda row: row["index"]))
    told = {"why": [words]} if facts is None else facts
    return Witness(name, f"{name}: {words}", in_order, facts={**told, "expected": RIGHT.get(name, _CYCLE_RIGHT)})


Told = tuple[str, list[int]]


def _unsent(seen: Seen, m: int, *_: int) -> Told:
    return f"{seen.value(m)} was polled from {seen.key(m)}, and nobody ever sent it", seen.who([m])


def _aborted(seen: Seen, m: int, *_: int) -> Told:
    return f"{seen.value(m)} was polled from {seen.key(m)}, but the send of it failed", seen.who([m])


def _lost(seen: Seen, o: int, m: int, beyond: int, _: int) -> Told:
    slots, messages = seen.placed()
    there = messages[slots == beyond]
    other = int(next(t for t in there if seen.logs.reader[t] >= 0))
    offset = _offsets(seen, m)[0]
    words = (
        f"{seen.value(m)} was sent to {seen.key(m)} at offset {offset} and never polled, "
        f"while {seen.value(other)} at offset {int(seen.slots.offset[beyond])} was"
    )
    return words, [o, int(seen.logs.reader[other])]


def _inconsistent(seen: Seen, slot: int, *_: int) -> Told:
    slots, messages = seen.placed()
    there = list(dict.fromkeys(messages[slots == slot].tolist()))[:3]
    names = " and ".join(map(seen.value, there))
    return f"offset {int(seen.slots.offset[slot])} of {seen.key(there[0])} holds {names}", seen.who(there)


def _duplicate(seen: Seen, m: int, *_: int) -> Told:
    where = ", ".join(map(str, _offsets(seen, m)))
    return f"{seen.value(m)} stands in {seen.key(m)} at offsets {where}", seen.who([m])


def _offsets(seen: Seen, m: int) -> list[int]:
    slots, messages = seen.placed()
    return sorted(set(seen.slots.offset[slots[messages == m]].tolist()))


def _precommitted(seen: Seen, o: int, m: int, *_: int) -> Told:
    return f"a transaction polled its own {seen.value(m)} from {seen.key(m)} before it committed", [o]


def _unseen(seen: Seen, o: int, m: int, *_: int) -> Told:
    return f"{seen.value(m)} was sent to {seen.key(m)} and acknowledged, and never polled", [o]


def _skipped(did: str) -> Callable[[Seen, int, int, int, int], Told]:
    def told(seen: Seen, o: int, a: int, b: int, next_o: int) -> Told:
        between = seen.logs.at_place[int(seen.logs.place[a]) + 1 : int(seen.logs.place[b])].tolist()
        missing = ", ".join(map(seen.value, between[:_SHOWN_MAX]))
        more = f" and {len(between) - _SHOWN_MAX} more" if len(between) > _SHOWN_MAX else ""
        words = (
            f"{seen.value(a)} and then {seen.value(b)} of {seen.key(a)} were {did}, "
            f"and between them stand {missing}{more}"
        )
        return words, [*_both(o, next_o), *seen.who(between[:1])]

    return told


def _backwards(did: str) -> Callable[[Seen, int, int, int, int], Told]:
    def told(seen: Seen, o: int, a: int, b: int, next_o: int) -> Told:
        if a == b:
            return f"{seen.value(a)} of {seen.key(a)} was {did} twice in a row", _both(o, next_o)
        words = f"{seen.value(a)} of {seen.key(a)} was {did} before {seen.value(b)}, which stands at an earlier offset"
        return words, _both(o, next_o)

    return told


def _both(o: int, next_o: int) -> list[int]:
    return [o, next_o] if next_o >= 0 else [o]


_WORDS: dict[int, Callable[[Seen, int, int, int, int], Told]] = {
    kinds.UNSENT_READ: _unsent,
    kinds.ABORTED_READ: _aborted,
    kinds.LOST_WRITE: _lost,
    kinds.INCONSISTENT_OFFSETS: _inconsistent,
    kinds.DUPLICATE: _duplicate,
    kinds.PRECOMMITTED_READ: _precommitted,
    kinds.INT_POLL_SKIP: _skipped("polled"),
    kinds.INT_NONMONOTONIC_POLL: _backwards("polled"),
    kinds.POLL_SKIP: _skipped("polled"),
    kinds.NONMONOTONIC_POLL: _backwards("polled"),
    kinds.NONMONOTONIC_SEND: _backwards("sent"),
    kinds.UNSEEN: _unseen,
    kinds.INT_NONMONOTONIC_SEND: _backwards("sent"),
    kinds.INT_SEND_SKIP: _skipped("sent"),
}
