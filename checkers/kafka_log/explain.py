"""Explains anomalies of Kafka's logs in words, with the events of the operations concerned.

*Cycles.*  Transactions of Kafka show G0 and G1c with their process and realtime variants.  A poll makes the sender
precede the poller (wr), because consumers poll only committed messages.  The caller decides whether the order of two
messages in a log also orders their senders (ww).  Transactions interleave their sends all the time, so cycles with ww
are common, and allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkers.base.arrays import Int32, Int64
from checkers.base.history import Type
from checkers.base.values import for_json, in_words, parse
from checkers.base.verdict import Witness
from checkers.kafka_log.columns import KafkaHistory, Slots
from checkers.kernels.kafka_log import log_anomalies as kinds
from checkers.kernels.kafka_log.log_anomalies import ASSIGN, Logs
from checkers.kernels.transactions.columns import Edges, Transactions
from checkers.kernels.transactions.dependencies import PROCESS, REALTIME, WR, WW, build_graph
from checkers.transactions.cycles import CycleSearch, NamedCycle, Step, find_cycles

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
        return in_words(self.history.values(message))

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
    in_order = tuple(event.as_row() for _, event in sorted(events.items()))
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


_KINDS = {WW: "ww", WR: "wr", PROCESS: "process", REALTIME: "realtime"}


def search(seen: SeenLog, ww: bool, steps_max: int) -> CycleSearch:
    """Find the smallest cycle of each class.  ww: whether the order of messages orders their senders."""
    columns, logs, pairs = seen.history.columns, seen.logs, seen.history.pairs
    happened = logs.happened & (columns.f < ASSIGN)
    poller = np.repeat(np.arange(len(columns.status), dtype=np.int32), np.diff(columns.poll_first))
    wr = _edges(logs.writer[columns.polled], poller, WR, happened)
    sent = logs.at_place[logs.writer[logs.at_place] >= 0]
    key, writer = columns.key_of[sent], logs.writer[sent]
    same = key[1:] == key[:-1]
    ww_edges = _edges(writer[:-1][same], writer[1:][same], WW, happened & ww)
    graph, incoming = build_graph(wr, ww_edges, len(columns.status))
    nothing = np.zeros(0, np.int32)
    txns = Transactions(
        process=columns.process,
        status=columns.status,
        invoked=pairs.invoked,
        completed=pairs.completed,
        first=np.zeros(len(columns.status) + 1, np.int64),
        kind=np.zeros(0, np.int8),
        key=nothing,
        value=nothing,
        list_first=np.zeros(1, np.int64),
        lists=nothing,
    )
    return find_cycles(txns, graph, incoming, happened, seen.history.event_count, steps_max)


def _edges(source: Int32, target: Int32, kind: int, happened: np.typing.NDArray[np.bool_]) -> Edges:
    kept = (source >= 0) & (source != target) & happened[source] & happened[target]
    return Edges(source[kept], target[kept], np.full(int(kept.sum()), kind, np.int8))


def explain_cycle(seen: SeenLog, cycle: NamedCycle) -> Witness:
    """Explain a cycle edge by edge; its facts have the form of those of transactions (`transactions/explain.py`)."""
    members = sorted({step.source for step in cycle.steps})
    names = {o: f"T{i}" for i, o in enumerate(members, 1)}
    edges = []
    for step in cycle.steps:
        key, why = _words(seen, step, names)
        a, b = names[step.source], names[step.target]
        edges.append({"from": a, "to": b, "edge": _KINDS[step.kind], "key": key, "why": why})
    listed = {}
    for o, name in names.items():
        events = seen.history.events(o)
        listed[name] = {
            "process": events[0].process,
            "status": Type(int(seen.history.columns.status[o])).name.lower(),
            "events": [e.index for e in events],
            "operations": for_json(parse(events[-1].payload or events[0].payload or "[]")),
        }
    sentences = [str(edge["why"]) for edge in edges]
    path = " -> ".join([f"{edge['from']} -{edge['edge']}" for edge in edges] + [str(edges[0]["from"])])
    facts = {"transactions": listed, "cycle": edges, "length": len(edges), "why": sentences}
    return witness(seen.history, cycle.name, f"{path}. {'; '.join(sentences)}", members, facts)


def _words(seen: SeenLog, step: Step, names: dict[int, str]) -> tuple[str | None, str]:
    """Return the key behind an edge, and the sentence."""
    columns, logs = seen.history.columns, seen.logs
    one, two = names[step.source], names[step.target]
    a, b = seen.history.events(step.source), seen.history.events(step.target)
    if step.kind == PROCESS:
        return None, f"process {a[0].process} ran {one} before {two}"
    if step.kind == REALTIME:
        return None, f"{one} completed (event {a[-1].index}) before {two} was invoked (event {b[0].index})"
    if step.kind == WR:
        polled = columns.polled[columns.poll_first[step.target] : columns.poll_first[step.target + 1]]
        message = int(polled[logs.writer[polled] == step.source][0])
        key = seen.key(message)
        return key, f"{one} sent {seen.value(message)} to {key}, which {two} polled"
    sent = columns.sent[columns.send_first[step.source] : columns.send_first[step.source + 1]].tolist()
    for message in sent:
        following = _next_sent(seen, message)
        if following >= 0 and logs.writer[following] == step.target:
            key = seen.key(message)
            return key, f"{one} sent {seen.value(message)} to {key} right before {two} sent {seen.value(following)}"
    raise AssertionError("an edge of ww without two messages")


def _next_sent(seen: SeenLog, message: int) -> int:
    """Return the next message of the log with a known sender, or -1."""
    logs, key_of = seen.logs, seen.history.columns.key_of
    at = int(logs.place[message])
    while 0 <= at < len(logs.at_place) - 1 and key_of[logs.at_place[at + 1]] == key_of[message]:
        at += 1
        if logs.writer[logs.at_place[at]] >= 0:
            return int(logs.at_place[at])
    return -1
