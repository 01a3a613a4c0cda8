"""Judges histories of Kafka's logs: sent messages, their offsets, and the order in which operations polled them.

    judge_kafka_log(events)    events with the payloads that `columns.py` describes
    KAFKA                      from a run's history.parquet, in process or on Spark

The judge assumes read-committed consumers.  Retention and compaction must not have removed any message, and for every
partition some consumer must have read from its beginning.  Otherwise `lost-write` is a false alarm.

An acknowledged message that was never polled (`unseen`) is a violation only if consumers read every partition to its
end after the last send.  A history cannot show this: a poll that returns nothing may just be slow.  So the workload
declares that its consumers read to the end (`read_to_end`), and the final reads of a run prove it.  Without this proof
the verdict on unseen messages is unknown.

Allowed anomalies are reported but are no violations:

    always                          int-send-skip, G0, G0-process, G0-realtime: transactions interleave their sends
    of a process that subscribed    poll-skip, nonmonotonic-poll on partitions of subscriptions: a rebalance moves
                                    consumers between polls.  If operations of the process record rebalances, the
                                    anomaly is allowed only at a recorded rebalance.  A process without an
                                    assignment counts as subscribed.  This row does not apply if the caller lists
                                    the allowed anomalies (`allow`)

In a run, one part contains the whole history, as for transactions (`transactions/checker.py`).  Consumers and
transactions span partitions, so a cycle may span all partitions.

*Explanations.*  Explains anomalies of Kafka's logs in words, with the events of the operations concerned.

*Cycles.*  Transactions of Kafka show G0 and G1c with their process and realtime variants.  If one transaction polls a
message, its sender precedes it (wr), because consumers poll only committed messages.  The order of two messages in a
log also orders their senders (ww), but Kafka lets transactions interleave their sends.  So a cycle with both wr and ww
proves nothing, and the search for G1c ignores ww.  Cycles of ww alone (G0) are searched only if they count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from checkers.base.arrays import Int32, Int64
from checkers.base.checker import BeyondBudget, Budget, Checker, Need, Part
from checkers.base.history import Event, Type
from checkers.base.stored_rows import over_budget
from checkers.base.stored_run import StoredRun
from checkers.base.values import for_json, in_words, parse
from checkers.base.verdict import MAX_WITNESSES, VIOLATIONS_BY_KIND, Validity, Verdict, Witness, shortened
from checkers.kafka_log.columns import KafkaHistory, Slots, from_events, from_file, slots_of
from checkers.kernels import kafka_log as kinds
from checkers.kernels.kafka_log import ASSIGN, Found, Logs
from checkers.kernels.transactions.columns import Edges, Transactions
from checkers.kernels.transactions.dependencies import PROCESS, REALTIME, WR, WW, build_graph
from checkers.record.header_and_outcome import RunOutcome
from checkers.transactions.anomalies import VARIANTS
from checkers.transactions.checker import COLUMNS, SHARES
from checkers.transactions.cycles import CycleSearch, NamedCycle, Step, find_cycles

__all__ = ["ALWAYS_ALLOWED", "ANOMALIES", "judge_history", "judge_kafka_log"]

CYCLES_OF_WRITES = frozenset("G0" + v for v in VARIANTS)
ALWAYS_ALLOWED = CYCLES_OF_WRITES | {"int-send-skip"}
_EXCUSED = {kinds.EXCUSED_POLL_SKIP: kinds.POLL_SKIP, kinds.EXCUSED_NONMONOTONIC_POLL: kinds.NONMONOTONIC_POLL}
"""Kind of an anomaly that a subscription excuses -> kind of the same anomaly without that excuse."""

_STEPS_PER_ROW = 5
_BYTES_PER_ROW = 120
"""Bytes of memory per operation, send or polled message (measured, rounded up)."""


def judge_kafka_log(
    events: Sequence[Event],
    budget: Budget = Budget(),  # noqa: B008 (frozen)
    *,
    allow: Collection[str] | None = None,
    read_to_end: bool = False,
) -> Verdict:
    """Judge a history of sends, polls, and transactions that contain both.

    allow: names of allowed anomalies; None allows ALWAYS_ALLOWED and the anomalies that subscriptions excuse
    read_to_end: True if consumers read every partition to its end after the last send

    `details`: {"anomalies": {name: number}, "allowed": [names found that do not count], "allowed_set": [...]}.
    Raises MalformedHistory if a payload does not have the form that `columns.py` describes.
    """
    return judge_history(from_events(events), budget, allow=allow, read_to_end=read_to_end)


def judge_history(
    history: KafkaHistory, budget: Budget, *, allow: Collection[str] | None = None, read_to_end: bool = False
) -> Verdict:
    """Judge a history that was already read, as `judge_kafka_log` does."""
    columns = history.columns
    looked_at = {
        "operations": int((columns.f < kinds.ASSIGN).sum()),
        "sends": len(columns.sent),
        "polled messages": len(columns.polled),
    }
    if not len(columns.polled) and not (np.diff(columns.send_first)[columns.status == kinds.OK]).any():
        reason = "no message was acknowledged and none was polled, so there was nothing to judge"
        return Verdict(Validity.UNKNOWN, looked_at, reason)
    rows = sum(looked_at.values())
    needed_steps = _STEPS_PER_ROW * rows
    needs = ((needed_steps, budget.steps, "steps"), (_BYTES_PER_ROW * rows, budget.size_bytes, "bytes"))
    for needed, limit, unit in needs:
        if needed > limit:
            reason = f"judging would take {needed} {unit} and the budget is {limit}"
            return Verdict(Validity.UNKNOWN, looked_at, reason)
    if twice := _sent_twice(history):
        return Verdict(Validity.UNKNOWN, looked_at, f"{twice}, so the sender of a message is not certain")
    allowed = ALWAYS_ALLOWED if allow is None else frozenset(allow)
    seen, found = _look(history)
    excused = _excused(found, counts=allow is None)
    cycles = search(seen, False, budget.steps - needed_steps)
    if not allowed >= CYCLES_OF_WRITES:
        cycles = _with_cycles_of_writes(cycles, search(seen, True, budget.steps - needed_steps))
    counts = {name: int(found.times[kind]) for kind, name in KIND_NAMES.items() if found.times[kind]}
    counts |= {cycle.name: cycle.times for cycle in cycles.cycles}
    names = sorted({*counts, *excused}, key=ANOMALIES.index)
    open_ends = not read_to_end and "unseen" not in allowed
    counted = [name for name in counts if name not in allowed and not (name == "unseen" and open_ends)]
    counted.sort(key=ANOMALIES.index)
    details = {
        "anomalies": {name: counts.get(name, 0) + excused.get(name, 0) for name in names},
        "allowed": [name for name in names if name not in counted],
        "allowed_set": sorted(allowed),
    }
    open_ = [name for name in cycles.unfinished if name in ANOMALIES and name not in allowed]
    reasons = [f"the budget ended the search for cycles ({', '.join(open_)})"] if open_ else []
    if open_ends and "unseen" in counts:
        reasons.append(_never_polled(seen))
    reason = "; ".join(reasons)
    if counted:
        witnesses = _witnesses(seen, found, cycles, counted[:MAX_WITNESSES])
        details[VIOLATIONS_BY_KIND] = {name: counts[name] for name in counted}
        looked_at["violations"] = sum(counts[name] for name in counted)
        return Verdict(Validity.INVALID, looked_at, reason, tuple(witnesses), details)
    return Verdict(Validity.UNKNOWN if reason else Validity.VALID, looked_at, reason, details=details)


def _excused(found: Found, *, counts: bool) -> dict[str, int]:
    """Return the number of excused anomalies by name.

    counts: True if subscriptions excuse anomalies; if False, count excused anomalies in `found` as not excused
    """
    excused: dict[str, int] = {}
    for kind, plain in _EXCUSED.items():
        if counts and found.times[kind]:
            excused[KIND_NAMES[plain]] = int(found.times[kind])
        elif found.times[kind]:
            found.sample[plain] = found.sample[plain] if found.times[plain] else found.sample[kind]
            found.times[plain] += found.times[kind]
    return excused


def _with_cycles_of_writes(cycles: CycleSearch, with_ww: CycleSearch) -> CycleSearch:
    """Add the cycles that consist of ww alone.  Only the search with the order of messages finds these cycles."""
    more = tuple(cycle for cycle in with_ww.cycles if cycle.name in CYCLES_OF_WRITES)
    unfinished = (*cycles.unfinished, *(name for name in with_ww.unfinished if name in CYCLES_OF_WRITES))
    return replace(cycles, cycles=(*cycles.cycles, *more), unfinished=unfinished)


def _look(history: KafkaHistory) -> tuple[SeenLog, Found]:
    columns = history.columns
    slots = slots_of(columns, len(history.keys))
    logs = kinds.read_logs(columns, slots.of_sent, slots.of_polled, slots.key)
    process_count = int(columns.process.max(initial=0)) + 1
    found = kinds.find_anomalies(columns, logs, slots.of_sent, len(history.keys), process_count)
    return SeenLog(history, logs, slots), found


def _witnesses(seen: SeenLog, found: Found, cycles: CycleSearch, counted: Sequence[str]) -> Iterator[Witness]:
    """Make one witness for each anomaly that counts."""
    kind_of = {name: kind for kind, name in KIND_NAMES.items()}
    cycle_of = {cycle.name: cycle for cycle in cycles.cycles}
    for name in counted:
        if name in cycle_of:
            yield explain_cycle(seen, cycle_of[name])
        else:
            words, operations = _WORDS[kind_of[name]](seen, *found.sample[kind_of[name]].tolist())
            yield witness(seen.history, name, words, operations)


def _never_polled(seen: SeenLog) -> str:
    """Return a sentence about the acknowledged messages that were never polled: it explains an unknown verdict."""
    columns = seen.history.columns
    acknowledged = np.repeat(columns.status == kinds.OK, np.diff(columns.send_first))
    messages = columns.sent[acknowledged & (seen.logs.reader[columns.sent] < 0)]
    names = sorted(seen.history.keys[key] for key in np.unique(columns.key_of[messages]).tolist())
    what = f"nothing shows what became of {len(messages)} acknowledged message{'s' * (len(messages) != 1)}"
    return f"{what} of {shortened(names)}: no poll showed them, and nothing states that logs were read to their ends"


def _sent_twice(history: KafkaHistory) -> str:
    """Return a sentence about a value that was sent twice to one key, or "" if there is no such value."""
    sent, columns = history.columns.sent, history.columns
    again = np.flatnonzero(np.bincount(sent, minlength=1) > 1)
    if not len(again):
        return ""
    key = history.keys[int(columns.key_of[again[0]])]
    return f"{history.values(int(again[0]))!r} was sent to {key} twice"


def judge(part: Part, budget: Budget) -> Verdict:
    """Judge one history.  params: options of `judge_history`."""
    whole = replace(budget, steps=budget.steps * SHARES, size_bytes=budget.size_bytes * SHARES)
    try:
        if (reason := over_budget(part, whole, COLUMNS)) is None:
            return judge_history(from_file(part.paths[0], whole.size_bytes), whole, **part.params)
    except BeyondBudget as problem:
        reason = str(problem)
    return Verdict(Validity.UNKNOWN, {"files": len(part.paths)}, reason)


def combine(run: StoredRun, findings: Sequence[Verdict]) -> Verdict:
    """Return the verdict of the only part."""
    return findings[0]


def ends_were_read(outcome: RunOutcome) -> bool:
    """Return whether the final reads of a run prove that every unseen acknowledged message is missing from its log.

    They prove it if each final read was answered, or if the system had recovered.  In a recovered system, a final read
    without an answer means that the log itself is lost.
    """
    answers, recovery = outcome.final_reads.values(), outcome.recovery
    recovered = recovery is not None and recovery.recovered is True
    return bool(answers) and (recovered or all(answer == "ok" for answer in answers))


def _checker(name: str, title: str, *, read_to_end: bool = False) -> Checker:
    def split(run: StoredRun) -> list[Part]:
        params = {"read_to_end": ends_were_read(run.outcome)} if read_to_end else {}
        return [Part((str(run.history),), params)]

    question = "Did every acknowledged message stay in its log, and was each log read in order and once?"
    needs: frozenset[Need] = frozenset({"history", "model"})
    return Checker(name, title, question, split, judge, combine, needs)


KAFKA = _checker("kafka", "Kafka's logs")

KAFKA_READ_TO_END = _checker("kafka-read-to-end", "Kafka's logs, read to their ends", read_to_end=True)
"""Checker for workloads that read every partition to its end after the last send.

It counts an acknowledged message that was never polled as lost."""

_STAYS = "that an acknowledged message stays at its offset, and is polled before any message behind it"
_POLLED_LATER = "that a transaction polls its own messages after it committed, if at all"
_NONE_LEFT_OUT = "the messages of a log one after another, none left out"
_BY_OFFSET = "the messages of a log in the order of their offsets"
_GOES_ON = "that a consumer goes on behind where it had stopped"
_LATER = "later offsets for the later messages of a transaction"
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
        """Return the operations that sent these messages, and those that first polled them."""
        chosen = list(messages)
        found = [int(self.logs.writer[m]) for m in chosen] + [int(self.logs.reader[m]) for m in chosen]
        return [o for o in found if o >= 0]

    def placed(self) -> tuple[Int64, Int64]:
        """Return (slots, messages) of all messages that are certainly in a log; polled messages come first."""
        columns = self.history.columns
        sender = np.repeat(np.arange(len(columns.status)), np.diff(columns.send_first))
        sure = self.logs.happened[sender]
        slot = np.concatenate([self.slots.of_polled, self.slots.of_sent[sure]])
        message = np.concatenate([columns.polled, columns.sent[sure]]).astype(np.int64)
        return slot[slot >= 0], message[slot >= 0]


def witness(
    history: KafkaHistory, name: str, words: str, operations: Iterable[int], facts: dict[str, Any] | None = None
) -> Witness:
    """Make a witness from a sentence and from the events of `operations`, each event once and in index order."""
    events = {e.index: e for o in operations for e in history.events(o)}
    in_order = tuple(event.as_row() for _, event in sorted(events.items()))
    facts = {"why": [words]} if facts is None else facts
    return Witness(name, f"{name}: {words}", in_order, facts={**facts, "expected": RIGHT.get(name, _CYCLE_RIGHT)})


Explained = tuple[str, list[int]]
"""(sentence, the operations that the sentence mentions)."""


def _unsent(seen: SeenLog, m: int, *_: int) -> Explained:
    return f"{seen.value(m)} was polled from {seen.key(m)}, and no operation ever sent it", seen.who([m])


def _aborted(seen: SeenLog, m: int, *_: int) -> Explained:
    return f"{seen.value(m)} was polled from {seen.key(m)}, but the send of it failed", seen.who([m])


def _replaced(seen: SeenLog, o: int, m: int) -> Explained | None:
    """Explain that a poll shows another message at the offset at which message `m` was acknowledged.

    Returns None if no poll shows another message there.
    """
    slots, messages = seen.placed()
    there = slots[messages == m]
    others = messages[np.isin(slots, there) & (messages != m)]
    other = next((int(t) for t in others if seen.logs.reader[t] >= 0), None)
    if other is None:
        return None
    offset = int(seen.slots.offset[there[0]])
    words = (
        f"{seen.value(m)} was acknowledged at offset {offset} of {seen.key(m)}, and a poll shows {seen.value(other)}"
    )
    return f"{words} there: the acknowledged message was replaced", [o, *seen.who([other])]


def _lost(seen: SeenLog, o: int, m: int, beyond: int, _: int) -> Explained:
    if (replaced := _replaced(seen, o, m)) is not None:
        return replaced
    slots, messages = seen.placed()
    there = messages[slots == beyond]
    other = int(next(t for t in there if seen.logs.reader[t] >= 0))
    offsets = _offsets(seen, m)
    later = f"{seen.value(other)} at offset {int(seen.slots.offset[beyond])} was polled"
    if offsets:
        return f"{seen.value(m)} was sent to {seen.key(m)} at offset {offsets[0]} and never polled, while {later}", [
            o,
            int(seen.logs.reader[other]),
        ]
    shown = [t for t in _sent_by(seen, o) if seen.logs.reader[t] >= 0]
    sure = f"{seen.value(shown[0])} of the same transaction was polled" if shown else "it was acknowledged"
    words = f"{seen.value(m)} was sent to {seen.key(m)} and never polled, though {sure}; {later} and was sent later"
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
    if (replaced := _replaced(seen, o, m)) is not None:
        return replaced
    shown = [t for t in _sent_by(seen, o) if seen.logs.reader[t] >= 0]
    if seen.history.columns.status[o] == kinds.OK or not shown:
        return f"{seen.value(m)} was sent to {seen.key(m)} and acknowledged, and never polled", [o]
    words = f"{seen.value(m)} was sent to {seen.key(m)} and never polled, though its transaction certainly committed"
    proof = f"{seen.value(shown[0])} of the same transaction was polled from {seen.key(shown[0])}"
    return f"{words}: {proof}", [o, *seen.who(shown[:1])]


def _skipped(did: str) -> Callable[[SeenLog, int, int, int, int], Explained]:
    def explained(seen: SeenLog, o: int, a: int, b: int, next_o: int) -> Explained:
        between = seen.logs.at_place[int(seen.logs.place[a]) + 1 : int(seen.logs.place[b])].tolist()
        missing = ", ".join(map(seen.value, between[:_SHOWN_MAX]))
        more = f" and {len(between) - _SHOWN_MAX} more" if len(between) > _SHOWN_MAX else ""
        words = (
            f"{seen.value(a)} and then {seen.value(b)} of {seen.key(a)} were {did}, "
            f"but the log contains {missing}{more} between them"
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
    words = f"{seen.value(a)} of {seen.key(a)} had been {did} before {seen.value(b)} was sent"
    return f"{words}, but {seen.value(b)} stands at an earlier offset", [o, next_o]


def _both(o: int, next_o: int) -> list[int]:
    return [o, next_o] if next_o >= 0 else [o]


_Words = Callable[[SeenLog, int, int, int, int], Explained]

_TABLE: tuple[tuple[int, str, _Words, str], ...] = (
    (kinds.UNSENT_READ, "unsent-read", _unsent, "only messages that were sent"),
    (kinds.ABORTED_READ, "G1a", _aborted, "no message of a send that failed"),
    (kinds.LOST_WRITE, "lost-write", _lost, _STAYS),
    (kinds.INCONSISTENT_OFFSETS, "inconsistent-offsets", _inconsistent, "one value at each offset, for ever"),
    (kinds.DUPLICATE, "duplicate", _duplicate, "one offset for a message that was sent once"),
    (kinds.PRECOMMITTED_READ, "precommitted-read", _precommitted, _POLLED_LATER),
    (kinds.INT_POLL_SKIP, "int-poll-skip", _skipped("polled"), _NONE_LEFT_OUT),
    (kinds.INT_NONMONOTONIC_POLL, "int-nonmonotonic-poll", _backwards("polled"), _BY_OFFSET),
    (kinds.POLL_SKIP, "poll-skip", _skipped("polled"), "that a consumer goes on where it had stopped"),
    (kinds.NONMONOTONIC_POLL, "nonmonotonic-poll", _backwards("polled"), _GOES_ON),
    (kinds.NONMONOTONIC_SEND, "nonmonotonic-send", _sent_behind, "later offsets for messages that are sent later"),
    (kinds.UNSEEN, "unseen", _unseen, "that every acknowledged message is polled in the end"),
    (kinds.INT_SEND_SKIP, "int-send-skip", _skipped("sent"), "the messages of a transaction one after another"),
    (kinds.INT_NONMONOTONIC_SEND, "int-nonmonotonic-send", _backwards("sent"), _LATER),
)
"""Anomalies other than cycles, worst first: (number in the kernel, name, explaining function, correct behaviour)."""

RIGHT = {name: right for _, name, _, right in _TABLE}
KIND_NAMES = {kind: name for kind, name, _, _ in _TABLE}
_WORDS = {kind: words for kind, _, words, _ in _TABLE}

ANOMALIES = (*RIGHT, *("G0" + v for v in VARIANTS), *("G1c" + v for v in VARIANTS))
"""The names of all anomalies, worst first."""

_KINDS = {WW: "ww", WR: "wr", PROCESS: "process", REALTIME: "realtime"}


def search(seen: SeenLog, ww: bool, steps_max: int) -> CycleSearch:
    """Find the smallest cycle of each class.  ww: True if the order of messages also orders their senders."""
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
    """Explain a cycle edge by edge.  The facts have the form that `transactions/explain.py` describes."""
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
    """Return the key of an edge, or None if it has none, and the sentence that explains the edge."""
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
    """Return the next message of the same log whose sender is known, or -1 if there is none."""
    logs, key_of = seen.logs, seen.history.columns.key_of
    at = int(logs.place[message])
    while 0 <= at < len(logs.at_place) - 1 and key_of[logs.at_place[at + 1]] == key_of[message]:
        at += 1
        if logs.writer[logs.at_place[at]] >= 0:
            return int(logs.at_place[at])
    return -1
