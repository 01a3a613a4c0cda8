"""Cycles of Kafka transactions: G0 and G1c with their process and realtime variants.

A poll makes the sender precede the poller (wr), for only committed messages are polled.  Whether the order of two
messages in a log makes their senders precede one another (ww) is the caller's to say: transactions interleave their
sends all the time, so that cycles with ww are everyday, and allowed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from checkers.history import Type
from checkers.kafka_log.logs import Log, happened
from checkers.kafka_log.read import TRANSACTIONS, Operation
from checkers.kafka_log.rules import witness
from checkers.kernels.dependencies import PROCESS, REALTIME, WR, WW, build_graph
from checkers.kernels.transactions import NEVER, Edges, Transactions
from checkers.transactions.cycles import Step, find_cycles
from checkers.verdict import Witness

_KINDS = {WW: "ww", WR: "wr", PROCESS: "process", REALTIME: "realtime"}


def cycles(
    operations: Sequence[Operation], logs: dict[str, Log], event_count: int, ww: bool, steps_max: int
) -> Iterator[Witness]:
    """A witness for each class of cycle there is."""
    members = [o for o in operations if o.f in TRANSACTIONS]
    number = {id(o): n for n, o in enumerate(members)}
    rows = sorted(_dependencies(logs, number, ww))
    columns = np.array(rows, np.int64).reshape(-1, 3)
    edges = Edges(columns[:, 0].astype(np.int32), columns[:, 1].astype(np.int32), columns[:, 2].astype(np.int8))
    txns = _columns(members)
    happens = np.array([happened(o, logs) for o in members], np.bool_)
    usable = happens[edges.source] & happens[edges.target]
    edges = Edges(edges.source[usable], edges.target[usable], edges.kind[usable])
    nothing = Edges(edges.source[:0], edges.target[:0], edges.kind[:0])
    graph, incoming = build_graph(edges, nothing, len(members))
    for cycle in find_cycles(txns, graph, incoming, happens, event_count, steps_max).cycles:
        names = {step.source: f"T{i}" for i, step in enumerate(sorted(cycle.steps, key=lambda s: s.source), 1)}
        said = [_words(step, names, members, logs) for step in cycle.steps]
        path = " -> ".join(
            [f"{names[s.source]} -{_KINDS[s.kind]}" for s in cycle.steps] + [names[cycle.steps[0].source]]
        )
        told = witness(
            cycle.name, f"{path}. {'; '.join(why for _, why in said)}", *(members[s.source] for s in cycle.steps)
        )
        drawn = [
            {"from": names[s.source], "to": names[s.target], "edge": _KINDS[s.kind], "key": key, "why": why}
            for s, (key, why) in zip(cycle.steps, said, strict=True)
        ]
        listed = {
            name: {
                "process": members[t].process,
                "status": members[t].status.name.lower(),
                "events": [e.index for e in members[t].events],
                "operations": json.loads(members[t].events[-1].payload or members[t].events[0].payload or "[]"),
            }
            for t, name in sorted(names.items())
        }
        why = [why for _, why in said]
        yield replace(told, facts={"transactions": listed, "cycle": drawn, "length": len(drawn), "why": why})


def _dependencies(logs: dict[str, Log], number: dict[int, int], ww: bool) -> set[tuple[int, int, int]]:
    found = set()
    for log in logs.values():
        for value, readers in log.readers.items():
            if value in log.writer:
                writer = number[id(log.writer[value])]
                found |= {(writer, number[id(reader)], WR) for reader in readers if number[id(reader)] != writer}
        if ww:
            writers = [number[id(log.writer[v])] for v in log.order if v in log.writer]
            found |= {(a, b, WW) for a, b in pairwise(writers) if a != b}
    return found


def _columns(members: Sequence[Operation]) -> Transactions:
    """Only the columns that cycles need: who, when, and whether."""
    count = len(members)
    return Transactions(
        process=np.array([o.process for o in members], np.int32),
        status=np.array([int(o.status) for o in members], np.int8),
        invoked=np.array([o.invoked for o in members], np.int64),
        completed=np.array([NEVER if o.completed is None else o.completed for o in members], np.int64),
        first=np.zeros(count + 1, np.int64),
        kind=np.zeros(0, np.int8),
        key=np.zeros(0, np.int32),
        value=np.zeros(0, np.int32),
        list_first=np.zeros(1, np.int64),
        lists=np.zeros(0, np.int32),
    )


def _words(
    step: Step, names: dict[int, str], members: Sequence[Operation], logs: dict[str, Log]
) -> tuple[str | None, str]:
    """The key an edge stands on, and the sentence."""
    a, b = members[step.source], members[step.target]
    one, two = names[step.source], names[step.target]
    if step.kind == PROCESS:
        return None, f"process {a.process} ran {one} before {two}"
    if step.kind == REALTIME:
        return (
            None,
            f"{one} completed (event {a.events[-1].index}) before {two} was invoked (event {b.events[0].index})",
        )
    for key, (_, value) in a.sends:
        log = logs[key]
        if step.kind == WR and any(v == value for _, v in b.polled(key)):
            return key, f"{one} sent {value!r} to {key}, which {two} polled"
        at = log.index_of.get(value, len(log.order))
        after = log.order[at + 1] if at + 1 < len(log.order) else None
        if step.kind == WW and log.writer.get(after) is b and b.status is not Type.FAIL:
            return key, f"{one} sent {value!r} to {key} right before {two} sent {after!r}"
    return None, f"{one} precedes {two}"
