"""Compares clients' changes of topics with the metadata log: topics that are created, changed, extended and deleted.

Only one client changes a topic, one change after the other, until a change gets no answer.  So the log must show the
acknowledged changes of a topic in this order, followed by at most the unanswered change.  A single log may end early,
but one of the final logs of a majority must contain every acknowledged change.

The state of a topic is one number (`topic_states.py`).  A batch changes a topic at most once, because a client waits
for the answer to a change before it requests the next one, and a repeated request changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.checker import Budget, Checker, Part
from checkers.base.columns import HISTORY
from checkers.base.history import Event
from checkers.base.stored_rows import log_rows, log_start, read_table
from checkers.base.stored_run import StoredRun, gaps, node_files
from checkers.base.verdict import Verdict, Witness, conclude
from checkers.cluster.topic_states import MADE_BEFORE, state_in_words, state_of
from checkers.models.model import Operation, operations_of
from checkers.sealing.sealed_history import read_rows

CHANGE = "write"
MISSING, OTHER = "acknowledged change of a topic is in no log", "log shows a change of a topic that no client made"
SIZE_BYTES_PER_ROW = 1500

States = Mapping[str, Sequence[tuple[int, int]]]
"""Name of a topic -> (offset of its last record in the batch, state) of each batch that changes its state."""


@dataclass(frozen=True, slots=True)
class TopicClash:
    """One disagreement between clients and logs.

    words: the disagreement, as one sentence
    node: node of the log; "" for all logs
    offsets: offsets of the records
    events: rows of the history
    """

    kind: str
    words: str
    node: str = ""
    offsets: tuple[int, ...] = ()
    events: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicsFinding:
    """Finding on the topics of a run.

    acknowledged: number of acknowledged changes
    logs: number of final logs that were read
    states: number of states of topics in these logs
    """

    clashes: tuple[TopicClash, ...] = ()
    acknowledged: int = 0
    logs: int = 0
    states: int = 0
    unknown: tuple[str, ...] = field(default=())


def states_in(records: Iterator[tuple[int, int, str, str, dict[str, Any]]]) -> States:
    """Return the states that each topic went through.

    records: (base offset of the batch, offset, kind, about, fields) in order of offset, as in schema CLUSTER.  A record
    of a topic's `retention.ms` has the kind "retention", the topic's name as `about`, and the field "value".
    """
    names: dict[str, str] = {}
    retention: dict[str, int | None] = {}
    partitions: dict[str, int] = {}
    found: dict[str, list[tuple[int, int]]] = {}
    touched: dict[str, int] = {}

    def end_of_batch() -> None:
        for name, offset in touched.items():
            state = state_of(retention.get(name) or 0, partitions.get(name, 0))
            states = found.setdefault(name, [])
            if not states or states[-1][1] != state:
                states.append((offset, state))
        touched.clear()

    batch = -1
    for base, offset, kind, about, fields in records:
        if base != batch:
            end_of_batch()
            batch = base
        name = about if kind == "retention" else names.get(about.partition("/")[0], "")
        match kind:
            case "topic":
                name = names[about] = fields["name"]
            case "retention":
                retention[name] = fields["value"]
            case "partition":
                partitions[name] = partitions.get(name, 0) + 1
            case "remove topic":
                retention.pop(name, None)
                partitions.pop(name, None)
            case _:
                continue
        touched[name] = offset
    end_of_batch()
    return found


def clashes_of(
    changes: Mapping[str, Sequence[Operation]], logs: Mapping[str, States], *, enough: bool
) -> list[TopicClash]:
    """Return all disagreements.

    changes: name of a topic -> its changes, in the order in which they were invoked
    logs: node -> states of the topics in its log
    enough: True if `logs` are those of a majority
    """
    clashes: list[TopicClash] = []
    for name, operations in changes.items():
        wanted = [_value(operation) for operation in operations]
        longest = 0
        for node, states in logs.items():
            shown = list(states.get(name, ()))
            if shown and shown[0][1] == MADE_BEFORE:
                shown = shown[1:]
            pairs = enumerate(zip_longest([state for _, state in shown], wanted))
            same = next((at for at, (state, value) in pairs if state != value), len(shown))
            longest = max(longest, same)
            if same < len(shown):
                offset, state = shown[same]
                due = f"it {state_in_words(wanted[same])}" if same < len(wanted) else "no further change"
                words = (
                    f"The log of {node} has {name} {state_in_words(state)} at offset {offset}; clients requested {due}."
                )
                clashes.append(TopicClash(OTHER, words, node, (offset,)))
        if enough and longest < sum(operation.returned for operation in operations):
            lost, state = operations[longest], wanted[longest]
            words = f"{name} was acknowledged as {state_in_words(state)}, and no log shows this state: the logs of "
            invoked = tuple(index for index in (lost.call, lost.ret) if index is not None)
            clashes.append(TopicClash(MISSING, f"{words}{', '.join(logs)} were read.", events=invoked))
    return clashes


def _value(operation: Operation) -> int:
    value = operation.input
    return cast(int, value[0] if isinstance(value, tuple) else value)


def _split(run: StoredRun) -> list[Part]:
    logs, cluster = node_files(run.log), node_files(run.cluster)
    read = {node: c["copy"] for node, c in run.final_copies.items() if node in logs and node in cluster}
    if not read or not run.history.exists():
        return []
    paths = [path for node in read for path in (logs[node], cluster[node])]
    return [Part((str(run.history), *paths), {"copies": read, "voters": len(run.voters)})]


def _judge(part: Part, budget: Budget) -> TopicsFinding:
    history, *paths = part.paths
    copies = part.params["copies"]
    rows = sum(pq.read_metadata(path).num_rows for path in part.paths)
    budget.demand(rows * SIZE_BYTES_PER_ROW, f"{rows} rows")
    events = pq.read_table(history, columns=HISTORY.names, partitioning=None)
    events = events.filter(pc.equal(pc.cast(events["f"], pa.string()), CHANGE))
    operations = operations_of(map(Event.of_row, events.to_pylist()))
    changes: dict[str, list[Operation]] = {}
    for operation in operations:
        changes.setdefault(str(operation.key), []).append(operation)
    for name, its in changes.items():
        if any(later.call < earlier.ends for earlier, later in pairwise(its)):
            return TopicsFinding(unknown=(f"changes of {name} overlap, so their order is not known",))
    files = {node: paths[at : at + 2] for node, at in zip(copies, range(0, len(paths), 2), strict=True)}
    whole = {node: log for node, (log, _) in files.items() if not log_start(log, copies[node])}
    logs = {node: states_in(_records(log, files[node][1], copies[node])) for node, log in whole.items()}
    enough = 2 * len(logs) > part.params["voters"]
    unknown = [f"the log of {node} begins after a snapshot" for node in files if node not in whole]
    if not enough:
        unknown.append(
            f"only {len(logs)} of {part.params['voters']} controllers have a log from offset 0 on, which is no majority"
        )
    return TopicsFinding(
        tuple(clashes_of(changes, logs, enough=enough)),
        sum(operation.returned for operation in operations),
        len(logs),
        sum(len(states) for each in logs.values() for states in each.values()),
        tuple(unknown),
    )


def _records(log: str, cluster: str, copy: int) -> Iterator[tuple[int, int, str, str, dict[str, Any]]]:
    entries = read_table(log, ("batch_offset", "offset", "key", "value"), copy)
    entries = entries.filter(pc.is_valid(entries["key"])).to_pylist()
    rows = [(e["batch_offset"], e["offset"], "retention", str(e["key"]), {"value": e["value"]}) for e in entries]
    table = pq.read_table(cluster, partitioning=None)
    for row in table.filter(pc.equal(table["copy"], copy)).to_pylist():
        rows.append((row["batch_offset"], row["offset"], row["kind"], row["about"], json.loads(row["fields"])))
    yield from sorted(rows, key=lambda row: row[:2])


def _combine(run: StoredRun, findings: Sequence[TopicsFinding]) -> Verdict:
    unknown = [why for finding in findings for why in finding.unknown] + gaps(run, "logs")
    if not findings:
        unknown.append("no final log was copied")
    looked_at = {
        "acknowledged changes": sum(f.acknowledged for f in findings),
        "logs": sum(f.logs for f in findings),
        "states of topics in logs": sum(f.states for f in findings),
    }
    if findings and not looked_at["acknowledged changes"] and not unknown:
        unknown.append("no change of a topic was acknowledged")
    return conclude([_witness(run, clash) for f in findings for clash in f.clashes], looked_at, unknown)


def _witness(run: StoredRun, clash: TopicClash) -> Witness:
    rows: list[dict[str, Any]] = []
    copies = {node: copy["copy"] for node, copy in run.final_copies.items()}
    if clash.node:
        rows = log_rows(node_files(run.log)[clash.node], copies[clash.node], clash.offsets)
    return Witness.of(
        clash.kind,
        clash.words,
        rows,
        read_rows(run.history, clash.events),
        nodes=[clash.node] if clash.node else sorted(copies),
        epoch=rows[0]["epoch"] if rows else -1,
        offset=clash.offsets[0] if clash.offsets else None,
        expected="the acknowledged changes of a topic, in their order",
    )


TOPICS_AGAINST_LOG = Checker(
    "topics-against-log",
    "Topics against the metadata log",
    "Does the log of the controllers show each acknowledged change of a topic, in order, and no other?",
    _split,
    _judge,
    _combine,
    frozenset({"history", "logs", "kraft-records", "model"}),
)
