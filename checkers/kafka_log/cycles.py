"""Cycles of Kafka transactions: G0 and G1c with their process and realtime variants.

A poll makes the sender precede the poller (wr), because consumers poll only committed messages.  The caller decides
whether the order of two messages in a log also orders their senders (ww).  Transactions interleave their sends all the
time, so cycles with ww are common, and allowed.
"""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Int32
from checkers.base.history import Type
from checkers.base.values import for_json, parse
from checkers.base.verdict import Witness
from checkers.kafka_log.explain import SeenLog, witness
from checkers.kernels.kafka_log.log_anomalies import ASSIGN
from checkers.kernels.transactions.columns import Edges, Transactions
from checkers.kernels.transactions.dependencies import PROCESS, REALTIME, WR, WW, build_graph
from checkers.transactions.cycles import CycleSearch, NamedCycle, Step, find_cycles

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
