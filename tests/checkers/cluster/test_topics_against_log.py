"""Changes of topics against the log: by hand, and as made by owners of topics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkers.base.checker import Budget, Part
from checkers.base.columns import CLUSTER, HISTORY, LOG
from checkers.base.history import Type
from checkers.cluster.topic_states import ABSENT, MADE_BEFORE, STATES, state_in_words
from checkers.cluster.topics_against_log import MISSING, OTHER, States, _judge, clashes_of, states_in
from checkers.models.model import Operation
from system_under_test.client import Outcome, Placement, Request
from system_under_test.kafka.client import ALTER, MAKE, REMOVE, WIDEN
from workloads.generators import Turn
from workloads.kafka import KafkaAdmin

LIVES = [
    (0, 0, "topic", "id1", {"name": "k0"}),
    (0, 1, "partition", "id1/0", {}),
    (2, 2, "retention", "k0", {"value": 7}),
    (3, 3, "partition", "id1/1", {}),
    (4, 4, "change partition", "id1/1", {}),
    (5, 5, "retention", "k0", {"value": 7}),  # a broker sent it twice
    (6, 6, "remove topic", "id1", {}),
    (7, 7, "retention", "k0", {"value": 9}),  # a batch may contain the config first
    (7, 8, "topic", "id2", {"name": "k0"}),
    (7, 9, "partition", "id2/0", {}),
    (10, 10, "topic", "id3", {"name": "mark-1"}),
    (10, 11, "partition", "id3/0", {}),
]
WANTED = (71, 72, 0, 91)


def test_a_log_shows_the_lives_of_a_topic() -> None:
    assert states_in(iter(LIVES)) == {
        "k0": [(1, MADE_BEFORE), (2, 71), (3, 72), (6, ABSENT), (9, 91)],
        "mark-1": [(11, MADE_BEFORE)],
    }
    assert [state_in_words(state) for state in (0, 1, 92)] == [
        "removed",
        "with 1 partition",
        "with 2 partitions and retention.ms=9",
    ]


def changes(*states: int, unanswered: int = 0) -> dict[str, list[Operation]]:
    """Return sequential changes; unanswered: number of the last ones without an answer."""
    known = len(states) - unanswered
    return {
        "k0": [
            Operation("write", (state, 0), (state, 0), "k0", 1, "", 2 * at, 2 * at + 1 if at < known else None)
            for at, state in enumerate(states)
        ]
    }


@pytest.mark.parametrize(
    ("wanted", "unanswered", "records", "enough", "kinds"),
    [
        (WANTED, 0, LIVES, True, []),
        (WANTED, 1, LIVES[:7], True, []),  # a change without an answer may be missing
        (WANTED, 1, LIVES, True, []),
        (WANTED, 0, LIVES[:7], True, [MISSING]),
        (WANTED, 0, LIVES[:7], False, []),  # the other logs may contain it
        ((71, 72, 0), 0, LIVES, True, [OTHER]),
        ((71, 82, 0, 91), 0, LIVES, True, [OTHER, MISSING]),
        ((72, 71, 0, 91), 0, LIVES, True, [OTHER, MISSING]),
    ],
)
def test_each_disagreement_is_found(
    wanted: Sequence[int], unanswered: int, records: list, enough: bool, kinds: list[str]
) -> None:
    logs = {"n1": states_in(iter(records))}
    found = clashes_of(changes(*wanted, unanswered=unanswered), logs, enough=enough)
    assert [clash.kind for clash in found] == kinds
    assert all("k0" in clash.words and clash.words.endswith(".") for clash in found)


def test_one_log_of_a_majority_suffices_and_others_may_end_early() -> None:
    logs: dict[str, States] = {node: states_in(iter(LIVES[:end])) for node, end in (("n1", 4), ("n2", 12), ("n3", 0))}
    assert clashes_of(changes(*WANTED), logs, enough=True) == []
    del logs["n2"]
    (lost,) = clashes_of(changes(*WANTED), logs, enough=True)
    assert (lost.kind, lost.events) == (MISSING, (4, 5))
    assert "k0 was acknowledged as removed, and no log shows this state" in lost.words


def written(path: Path, schema: pa.Schema, rows: Sequence[dict[str, Any]]) -> str:
    """Write rows whose other columns are null."""
    nothing = dict.fromkeys(schema.names)
    nullable = pa.schema([field.with_nullable(True) for field in schema])
    pq.write_table(pa.Table.from_pylist([nothing | row for row in rows], schema=nullable), path)
    return str(path)


@pytest.mark.parametrize("first", [0, 5])
def test_a_log_that_begins_behind_a_snapshot_accuses_nobody(tmp_path: Path, first: int) -> None:
    (operation,) = changes(WANTED[0])["k0"]
    call = {"time_ns": 1, "process": 0, "f": operation.f, "key": "k0", "value": WANTED[0]}
    history = [call | {"index": 0, "type": Type.INVOKE}, call | {"index": 1, "time_ns": 2, "type": Type.OK}]
    made = {"node": "n1", "copy": 0, "offset": first, "batch_offset": first, "kind": "topic", "about": "id9"}
    paths = [
        written(tmp_path / "history.parquet", HISTORY, history),
        written(tmp_path / "log.parquet", LOG, [{"node": "n1", "copy": 0, "offset": first, "batch_offset": first}]),
        written(tmp_path / "cluster.parquet", CLUSTER, [made | {"fields": json.dumps({"name": "k9"})}]),
    ]
    found = _judge(Part(tuple(paths), {"copies": {"n1": 0}, "voters": 1}), Budget())
    assert [clash.kind for clash in found.clashes] == ([] if first else [MISSING])
    assert bool(found.unknown) is bool(first)


def controlled(seed: int) -> tuple[list[Request], list]:
    """Return acknowledged changes of one thread, and the records of a correct controller for them."""
    rng, workload = Random(seed), KafkaAdmin(1)
    owner, records, ids, asked = workload.generator(Placement(0, "c1", follows=True, reads_only=False)), [], {}, []

    def batch(*rows: tuple[str, str, dict]) -> None:
        base = len(records)
        records.extend((base, base + at, *row) for at, row in enumerate(rows))

    def make(name: str) -> list[tuple[str, str, dict]]:
        ids[name] = (f"id{len(records)}", 1)
        return [("topic", ids[name][0], {"name": name}), ("partition", f"{ids[name][0]}/0", {})]

    for name in workload.names:
        batch(*make(name))
    for count in range(120):
        step, owner = owner.next(Turn(Placement(0, "c1", follows=True, reads_only=False), 1, rng, count=count))
        assert isinstance(step, Request) and step.key is not None
        owner = owner.heard(step, Outcome(Type.OK, step.value, step.value2))
        if step.f == "read":
            continue
        asked.append(step)
        retention = ("retention", step.key, {"value": (step.value or 0) // STATES})
        if step.value2 == MAKE:
            batch(*make(step.key), retention)
        elif step.value2 == ALTER:
            batch(retention)
        elif step.value2 == WIDEN:
            ids[step.key] = (ids[step.key][0], ids[step.key][1] + 1)
            batch(("partition", f"{ids[step.key][0]}/{ids[step.key][1] - 1}", {}))
        else:
            assert step.value2 == REMOVE and step.value == ABSENT
            batch(("remove topic", ids[step.key][0], {}))
    return asked, records


@pytest.mark.parametrize("seed", range(8))
def test_a_sound_controller_is_not_accused_and_a_lost_batch_is_found(seed: int) -> None:
    asked, records = controlled(seed)
    assert {step.value2 for step in asked} == {MAKE, ALTER, WIDEN, REMOVE}
    assert len({(step.key, step.value) for step in asked}) == len(asked), "no state of a topic comes twice"
    wanted: dict[str, list[Operation]] = {}
    for at, step in enumerate(asked):
        value = (step.value, step.value2)
        operation = Operation("write", value, value, step.key, 0, "", 2 * at, 2 * at + 1)
        wanted.setdefault(step.key or "", []).append(operation)
    assert clashes_of(wanted, {"n1": states_in(iter(records))}, enough=True) == []
    lost = Random(seed).choice([record[0] for record in records if record[2] == "retention"])
    left = [record for record in records if record[0] != lost]
    assert clashes_of(wanted, {"n1": states_in(iter(left))}, enough=True)
