"""Buckets: they hold the operations of the events, and a bucket that was damaged on disk is never judged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
import pyarrow.parquet as pq
import pytest
from histories import Script, tiny, write_stream

from checkers.base.checker import Budget, Part, Task, judge_task
from checkers.base.history import CREATE, Event, MalformedHistory, Type
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity
from checkers.judging import judge_run
from checkers.kernels.operations import (
    CAS,
    MISMATCH,
    NIL,
    OPEN,
    READ,
    SIZE_BYTES_PER_OPERATION,
    WRITE,
    are_numbers,
    numbered,
)
from checkers.registers.checker import LINEARIZABILITY, judge, split
from checkers.sealing.key_buckets import Bucket, open_bucket, pieces, read_key, read_operations
from checkers.sealing.seal import seal

NAMES = {READ: "read", WRITE: "write", CAS: "cas", MISMATCH: "mismatch"}


@dataclass(frozen=True)
class Op:
    """An operation as a person would write it down; invoked, completed: indices of its events."""

    kind: str
    value: int | None
    value2: int | None
    invoked: int
    completed: int | None
    returned: bool


def by_hand(events: list[Event], key: str, observed: bool) -> list[Op]:
    """The operations of a key, read off its events one by one."""
    found = []
    for event in events:
        if event.key != key or event.process < 0 or event.type is not Type.INVOKE or event.f == CREATE:
            continue
        later = (e for e in events[event.index + 1 :] if e.process == event.process)
        completion = next(later, None)
        how = completion.type if completion else Type.INFO
        at = completion.index if completion else None
        mismatched = how is Type.FAIL and completion is not None and completion.error in (None, "mismatch")
        happened = Op(event.f, event.value, event.value2, event.index, at, how is Type.OK)
        match event.f, how:
            case "read", Type.OK:
                assert completion is not None
                found.append(replace(happened, value=completion.value, value2=None))
            case "write", Type.OK | Type.INFO:
                found.append(replace(happened, value2=None))
            case "cas", Type.OK if event.value == event.value2:
                found.append(replace(happened, kind="read", value2=None))
            case "cas", Type.OK | Type.INFO if event.value != event.value2:
                found.append(happened)
            case "cas", Type.FAIL if mismatched and observed:
                found.append(replace(happened, kind="mismatch", value2=None, returned=True))
    return found


def positions_by_hand(ops: list[Op]) -> list[tuple[int, int]]:
    """Call and ret of each operation: the place of its events among all that matter."""
    matter = sorted([op.invoked for op in ops] + [op.completed for op in ops if op.returned and op.completed])
    place = {index: at for at, index in enumerate(matter)}
    return [(place[op.invoked], place[op.completed] if op.returned and op.completed else OPEN) for op in ops]


def whole(bucket: Bucket, k: int) -> tuple[list[Op], list[tuple[int, int]]]:
    """What the bucket says of a key, in the same words."""
    ops = read_key(bucket, k)

    def value(number: int) -> int | None:
        return None if number == NIL else number

    found = [
        Op(NAMES[kind], value(a), value(b), invoked, completed if completed >= 0 else None, ret != OPEN)
        for kind, a, b, ret, invoked, completed in zip(
            *(column.tolist() for column in (ops.kind, ops.a, ops.b, ops.ret, ops.invoked, ops.completed)), strict=True
        )
    ]
    return found, list(zip(ops.call.tolist(), ops.ret.tolist(), strict=True))


def buckets_of(folder: Path, events: list[Event], observed: bool = False) -> list[Bucket]:
    if not (folder / "buckets").exists():
        seal(write_stream(folder, events))
    return [
        open_bucket(path, folder / "history.parquet", observed)
        for path in sorted((folder / "buckets").glob("*.parquet"))
    ]


def anything(rng: Random, count: int) -> list[Event]:
    """Grammatical events of several keys: each invoke is answered, refused or left open; values repeat."""
    keys = ["k0", "schlüssel", "", "k1", "k2"]
    values = [None, 0, 1, 2, -1, 2**63 - 1, -(2**63) + 1, 10**12, 5, 5]
    busy: dict[int, Event] = {}
    fresh, events = 4, []
    idle = list(range(fresh))
    while len(events) < count:
        index = len(events)
        if rng.random() < 0.03:
            events.append(Event(index, 0, -1, Type.INFO, "partition"))
        elif idle and (not busy or rng.random() < 0.5):
            f = rng.choice(["read", "write", "cas", "cas", CREATE])
            key = rng.choice([*keys, None] if f == CREATE else keys)
            two = [rng.choice(values[1:]), rng.choice(values)] if f == "cas" else [rng.choice(values), None]
            event = Event(index, 7, idle.pop(), Type.INVOKE, f, key, *(two if f != "read" else [None, None]))
            busy[event.process] = event
            events.append(event)
        else:
            invoke = busy.pop(rng.choice(sorted(busy)))
            how = rng.choice([Type.OK, Type.OK, Type.FAIL, Type.INFO])
            error = rng.choice([None, "mismatch", "refused"]) if how is Type.FAIL else None
            answer = rng.choice(values) if invoke.f == "read" else invoke.value
            events.append(replace(invoke, index=index, type=how, value=answer, error=error, node="n1"))
            idle.append(invoke.process if how is not Type.INFO else fresh)
            fresh += how is Type.INFO
    return events


@pytest.mark.parametrize("observed", [False, True])
def test_a_bucket_holds_what_the_events_say(tmp_path: Path, observed: bool) -> None:
    """Numbers tell apart what values tell apart, and nothing else."""
    rng = Random(11)
    operations = 0
    for run in range(40):
        events = anything(rng, rng.randint(1, 150))
        seen = set()
        for bucket in buckets_of(tmp_path / str(run), events, observed):
            bare = read_operations(bucket, 0, len(bucket.keys))
            for k, name in enumerate(bucket.keys):
                expected = by_hand(events, name, observed)
                assert whole(bucket, k) == (expected, positions_by_hand(expected)), (name, events)
                operations += len(expected)
                seen.add(name)
                values, rows = read_key(bucket, k), slice(int(bare.offsets[k]), int(bare.offsets[k + 1]))
                for column in ("kind", "call", "ret"):
                    assert getattr(bare, column)[rows].tolist() == getattr(values, column).tolist()
                assert int(bare.positions[k]) == int(values.positions[0])
                pairs = set(zip(bare.a[rows].tolist(), values.a.tolist(), strict=True))
                pairs |= set(zip(bare.b[rows].tolist(), values.b.tolist(), strict=True))
                assert len({number for number, _ in pairs}) == len({value for _, value in pairs}) == len(pairs)
                assert all((number == NIL) == (value == NIL) for number, value in pairs)
                assert are_numbers(bare.a[rows], bare.b[rows], 2 * int(bucket.operations[k]))
        invoked = {e.key for e in events if e.key is not None and e.process >= 0 and e.f != CREATE}
        assert seen == invoked
    assert operations > 400


@pytest.mark.parametrize("spread", [1, -1, 1000, 2**40 + 1])
def test_values_are_numbered_in_the_order_in_which_they_are_first_produced(spread: int) -> None:
    kind = np.array([READ, WRITE, CAS, READ, WRITE, READ], np.int8)
    a = np.array([9, 7, 7, 8, NIL, NIL])
    b = np.array([NIL, NIL, 8, NIL, NIL, NIL])

    def far(column: np.ndarray) -> np.ndarray:
        return np.where(column == NIL, NIL, column * spread)

    new_a, new_b = numbered(kind, far(a), far(b))
    assert new_a.tolist() == [2, 0, 0, 1, NIL, NIL]
    assert new_b.tolist() == [NIL, NIL, 1, NIL, NIL, NIL]


def a_wrong_run(folder: Path) -> StoredRun:
    """Two wrong keys, one of unique and one of repeated values, and a right one."""
    events = Script("a").invoke(0, "write", 1).ok(0).invoke(0, "write", 2).ok(0).invoke(0, "read").ok(0, 1).events
    for script in (
        Script("b").invoke(1, "write", 1).ok(1).invoke(1, "write", 1).ok(1).invoke(1, "read").ok(1, None),
        Script("c").invoke(2, "write", 1).ok(2).invoke(2, "cas", 3, 4).fail(2, "mismatch").invoke(2, "read").ok(2, 1),
    ):
        events += [replace(e, index=e.index + len(events)) for e in script.events]
    seal(write_stream(folder, events))
    return StoredRun(folder)


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.nightly)])
def test_no_byte_of_a_bucket_can_be_changed_so_that_what_is_wrong_passes_for_right(tmp_path: Path, step: int) -> None:
    files = a_wrong_run(tmp_path)
    wrong = {path for path in files.buckets.glob("*.parquet") if open_bucket(path, files.history).keys[0] in ("a", "b")}
    assert len(wrong) == 2
    rng = Random(5)
    noticed = same = 0
    for path in sorted(wrong):
        sound = path.read_bytes()
        part = Part((str(path), str(files.history)))
        finding = judge(part, Budget())
        assert finding.invalid_keys == 1
        for at in range(0, len(sound), step):
            data = bytearray(sound)
            data[at] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
            judged = judge_task(Task(judge, part, Budget()))
            if judged.failure:
                noticed += 1
            else:
                assert judged.finding == finding, f"byte {at} of {path.name}"
                same += 1
        path.write_bytes(sound)
    assert noticed > same


def test_a_bucket_cut_short_or_gone_is_unknown_and_does_not_hide_a_wrong_one(tmp_path: Path) -> None:
    files = a_wrong_run(tmp_path)
    for path in files.buckets.glob("*.parquet"):
        if open_bucket(path, files.history).keys[0] == "a":
            path.write_bytes(path.read_bytes()[:-10])
    verdict = judge_run(files, [LINEARIZABILITY])["linearizability"]
    assert verdict.validity is Validity.INVALID
    assert {w.facts["key"] for w in verdict.witnesses} == {"b"}
    assert "could not be judged" in verdict.reason
    parts = split(files)
    for path in files.buckets.glob("*.parquet"):
        path.unlink()
    for part in parts:
        assert "No such file" in judge_task(Task(judge, part, Budget())).failure


def test_what_cannot_be_is_refused_before_a_kernel_sees_it(tmp_path: Path) -> None:
    """Whole pages, right checksums, and numbers that would lead a kernel outside its arrays."""
    files = a_wrong_run(tmp_path)
    path = min(files.buckets.glob("*.parquet"))
    sound = pq.read_table(path)
    metadata = pq.read_metadata(path).metadata
    for column, number in (("call", 99), ("ret", 0), ("a", 2**20), ("b", -2), ("kind", 9), ("call", -1)):
        at = sound.schema.get_field_index(column)
        numbers = np.asarray(sound.column(column)).copy()
        numbers[1] = number
        table = sound.set_column(at, sound.schema.field(at), [numbers])
        with pq.ParquetWriter(path, sound.schema) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({b"krucible.keys": metadata[b"krucible.keys"]})
        with pytest.raises(MalformedHistory, match="row 1 describes an impossible operation"):
            judge(Part((str(path), str(files.history))), Budget())


def test_a_bucket_beyond_the_budget_of_bytes_is_judged_a_few_keys_at_a_time(tmp_path: Path) -> None:
    rng = Random(6)
    events: list[Event] = []
    for k in range(200):
        first = 1 + max((e.process for e in events), default=-1)
        some = tiny(rng, 8, 3)
        events += [replace(e, index=e.index + len(events), process=e.process + first, key=f"k{k}") for e in some]
    files = StoredRun(tmp_path)
    seal(write_stream(tmp_path, events))
    at_once = [judge(part, Budget()) for part in split(files)]
    small = Budget(size_bytes=30 * SIZE_BYTES_PER_OPERATION)
    assert all(len(list(pieces(b, small.size_bytes))) > 3 for b in buckets_of(tmp_path, events))
    assert [judge(part, small) for part in split(files)] == at_once
