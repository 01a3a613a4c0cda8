"""Explains anomalies of Kafka's logs in words, with the events of the operations concerned."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkers.base.arrays import Int64
from checkers.base.history import Event
from checkers.base.verdict import Witness
from checkers.kafka_log.columns import KafkaHistory
from checkers.kafka_log.offset_slots import Slots
from checkers.kernels.kafka_log import log_anomalies as kinds
from checkers.kernels.kafka_log.log_anomalies import Logs

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
    "unsent-read": "only messages that were sent",
    "G1a": "no message of a send that failed",
    "lost-write": "that an acknowledged message is polled before any message behind it",
    "inconsistent-offsets": "one value at each offset, for ever",
    "duplicate": "one offset for a message that was sent once",
    "precommitted-read": "that a transaction polls its own messages after it committed, if at all",
    "int-poll-skip": "the messages of a log one after another, none left out",
    "int-nonmonotonic-poll": "the messages of a log in the order of their offsets",
    "poll-skip": "that a consumer goes on where it had stopped",
    "nonmonotonic-poll": "that a consumer goes on behind where it had stopped",
    "nonmonotonic-send": "later offsets for messages that are sent later",
    "unseen": "that every acknowledged message is polled in the end",
    "int-nonmonotonic-send": "later offsets for the later messages of a transaction",
    "int-send-skip": "the messages of a transaction one after another",
}
"""The correct behaviour, per anomaly; all cycles share one sentence."""

_CYCLE_RIGHT = "an order in which each comes after all that it depends on; there is none"
_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class SeenLog:
    """The data that sentences are made from."""

    history: KafkaHistory
    logs: Logs
    slots: Slots

    def value(self, message: int) -> str:
        return repr(self.history.values(message))

    def key(self, message: int) -> str:
        return self.history.keys[int(self.history.columns.key_of[message])]

    def who(self, messages: Iterable[int]) -> list[int]:
        """The operations that sent these messages, and those that first polled them."""
        chosen = list(messages)
        found = [int(self.logs.writer[m]) for m in chosen] + [int(self.logs.reader[m]) for m in chosen]
        return [o for o in found if o >= 0]

    def placed(self) -> tuple[Int64, Int64]:
        """Return (slots, messages) of all messages that are certainly in a log, polled messages first."""
        columns = self.history.columns
        sender = np.repeat(np.arange(len(columns.status)), np.diff(columns.send_first))
        sure = self.logs.happened[sender]
        slot = np.concatenate([self.slots.of_polled, self.slots.of_sent[sure]])
        message = np.concatenate([columns.polled, columns.sent[sure]]).astype(np.int64)
        return slot[slot >= 0], message[slot >= 0]


def explain(seen: SeenLog, kind: int, sample: tuple[int, int, int, int]) -> Witness:
    words, operations = _WORDS[kind](seen, *sample)
    return witness(seen.history, KIND_NAMES[kind], words, operations)


def witness(
    history: KafkaHistory, name: str, words: str, operations: Iterable[int], facts: dict[str, Any] | None = None
) -> Witness:
    """Make a witness: the sentence, and the events of the operations concerned, in index order, each once."""
    events = {e.index: e for o in operations for e in history.events(o)}
    rows = [{c: getattr(e, c) for c in Event.__slots__} | {"type": int(e.type)} for e in events.values()]
    in_order = tuple(sorted(rows, key=lambda row: row["index"]))
    facts = {"why": [words]} if facts is None else facts
    return Witness(name, f"{name}: {words}", in_order, facts={**facts, "expected": RIGHT.get(name, _CYCLE_RIGHT)})


Explained = tuple[str, list[int]]
"""A sentence, and the operations it is about."""


def _unsent(seen: SeenLog, m: int, *_: int) -> Explained:
    return f"{seen.value(m)} was polled from {seen.key(m)}, and no operation ever sent it", seen.who([m])


def _aborted(seen: SeenLog, m: int, *_: int) -> Explained:
    return f"{seen.value(m)} was polled from {seen.key(m)}, but the send of it failed", seen.who([m])


def _lost(seen: SeenLog, o: int, m: int, beyond: int, _: int) -> Explained:
    slots, messages = seen.placed()
    there = messages[slots == beyond]
    other = int(next(t for t in there if seen.logs.reader[t] >= 0))
    offsets = _offsets(seen, m)
    behind = f"while {seen.value(other)} at offset {int(seen.slots.offset[beyond])} was"
    if offsets:
        return f"{seen.value(m)} was sent to {seen.key(m)} at offset {offsets[0]} and never polled, {behind}", [
            o,
            int(seen.logs.reader[other]),
        ]
    shown = [t for t in _sent_by(seen, o) if seen.logs.reader[t] >= 0]
    sure = f"{seen.value(shown[0])} of the same transaction was polled" if shown else "it was acknowledged"
    words = f"{seen.value(m)} was sent to {seen.key(m)} and never polled, though {sure}, {behind}, which was sent later"
    return words, [o, *seen.who([*shown[:1], other])]


def _sent_by(seen: SeenLog, o: int) -> list[int]:
    columns = seen.history.columns
    found: list[int] = columns.sent[columns.send_first[o] : columns.send_first[o + 1]].tolist()
    return found


def _inconsistent(seen: SeenLog, slot: int, *_: int) -> Explained:
    slots, messages = seen.placed()
    there = list(dict.fromkeys(messages[slots == slot].tolist()))[:3]
    names = " and ".join(map(seen.value, there))
    return f"offset {int(seen.slots.offset[slot])} of {seen.key(there[0])} holds {names}", seen.who(there)


def _duplicate(seen: SeenLog, m: int, *_: int) -> Explained:
    where = ", ".join(map(str, _offsets(seen, m)))
    return f"{seen.value(m)} stands in {seen.key(m)} at offsets {where}", seen.who([m])


def _offsets(seen: SeenLog, m: int) -> list[int]:
    slots, messages = seen.placed()
    return sorted(set(seen.slots.offset[slots[messages == m]].tolist()))


def _precommitted(seen: SeenLog, o: int, m: int, *_: int) -> Explained:
    return f"a transaction polled its own {seen.value(m)} from {seen.key(m)} before it committed", [o]


def _unseen(seen: SeenLog, o: int, m: int, *_: int) -> Explained:
    shown = [t for t in _sent_by(seen, o) if seen.logs.reader[t] >= 0]
    if seen.history.columns.status[o] == kinds.OK or not shown:
        return f"{seen.value(m)} was sent to {seen.key(m)} and acknowledged, and never polled", [o]
    words = f"{seen.value(m)} was sent to {seen.key(m)} in a transaction that committed, because {seen.value(shown[0])}"
    return f"{words} of it was polled from {seen.key(shown[0])}, and it was never polled", [o, *seen.who(shown[:1])]


def _skipped(did: str) -> Callable[[SeenLog, int, int, int, int], Explained]:
    def explained(seen: SeenLog, o: int, a: int, b: int, next_o: int) -> Explained:
        between = seen.logs.at_place[int(seen.logs.place[a]) + 1 : int(seen.logs.place[b])].tolist()
        missing = ", ".join(map(seen.value, between[:_SHOWN_MAX]))
        more = f" and {len(between) - _SHOWN_MAX} more" if len(between) > _SHOWN_MAX else ""
        words = (
            f"{seen.value(a)} and then {seen.value(b)} of {seen.key(a)} were {did}, "
            f"and between them stand {missing}{more}"
        )
        return words, [*_both(o, next_o), *seen.who(between[:1])]

    return explained


def _backwards(did: str) -> Callable[[SeenLog, int, int, int, int], Explained]:
    def explained(seen: SeenLog, o: int, a: int, b: int, next_o: int) -> Explained:
        if a == b:
            return f"{seen.value(a)} of {seen.key(a)} was {did} twice in a row", _both(o, next_o)
        words = f"{seen.value(a)} of {seen.key(a)} was {did} before {seen.value(b)}, which stands at an earlier offset"
        return words, _both(o, next_o)

    return explained


def _sent_behind(seen: SeenLog, o: int, a: int, b: int, next_o: int) -> Explained:
    did = "sent" if a in _sent_by(seen, o) else "polled"
    words = f"{seen.value(a)} of {seen.key(a)} had been {did} before {seen.value(b)} was sent, which stands before it"
    return words, [o, next_o]


def _both(o: int, next_o: int) -> list[int]:
    return [o, next_o] if next_o >= 0 else [o]


_WORDS: dict[int, Callable[[SeenLog, int, int, int, int], Explained]] = {
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
    kinds.NONMONOTONIC_SEND: _sent_behind,
    kinds.UNSEEN: _unseen,
    kinds.INT_NONMONOTONIC_SEND: _backwards("sent"),
    kinds.INT_SEND_SKIP: _skipped("sent"),
}
