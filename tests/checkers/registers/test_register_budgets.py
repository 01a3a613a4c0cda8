"""A bucket that does not fit into memory is judged in pieces; counts, budgets and reasons are those of its keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from histories import Script, by_construction, write_stream

from checkers.base.arrays import Int8
from checkers.base.checker import Budget, Part
from checkers.base.history import Event
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Witness
from checkers.kernels import register_antichain as antichain
from checkers.kernels import register_unique_values as register
from checkers.kernels.operations import SIZE_BYTES_PER_OPERATION, Operations
from checkers.registers import judge_keys
from checkers.registers.checker import judge, split
from checkers.registers.judge_keys import BucketFinding, combine
from checkers.sealing import seal as sealing
from checkers.sealing.key_buckets import open_bucket, read_operations
from checkers.sealing.seal import seal


@pytest.fixture(autouse=True)
def one_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "BUCKETS_MIN", 1)


def part_of(folder: Path, events: list[Event]) -> Part:
    """The only bucket of a sealed run."""
    seal(write_stream(folder, events))
    [part] = split(StoredRun(folder))
    return part


def keys_one_after_another(*operations: int) -> list[Event]:
    """Key number n has so many writes of unique values; a read ends each key."""
    events: list[Event] = []
    for number, count in enumerate(operations):
        script = Script(f"k{number}")
        for value in range(count - 1):
            script.invoke(0, "write", value + 1).ok(0)
        script.invoke(0, "read").ok(0, count - 1)
        events += [replace(e, index=len(events) + at, time_ns=0) for at, e in enumerate(script.events)]
    return events


def test_a_key_beyond_the_budget_is_unknown_and_those_after_it_are_judged(tmp_path: Path) -> None:
    size_bytes = 6 * SIZE_BYTES_PER_OPERATION
    part = part_of(tmp_path / "run", keys_one_after_another(5, 7, 6, 4))
    finding = judge(part, Budget(size_bytes=size_bytes))
    assert finding.keys == 3
    needed = 7 * SIZE_BYTES_PER_OPERATION
    words = f"key k1: its operations need {needed} bytes and the budget is {size_bytes}"
    assert finding.unknown == (("k1", words),)
    verdict = combine([finding])
    assert (verdict.validity, verdict.reason) == (Validity.UNKNOWN, words)


def test_each_piece_gets_its_share_of_the_steps_and_the_memory_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Budget] = []
    search = judge_keys._search

    def noting(operations: Operations, codes: Int8, budget: Budget) -> object:
        given.append(budget)
        return search(operations, codes, budget)

    monkeypatch.setattr(judge_keys, "_search", noting)
    part = part_of(tmp_path / "run", keys_one_after_another(5, 7, 6, 4))
    size_bytes = 8 * SIZE_BYTES_PER_OPERATION
    judge(part, Budget(steps=2_200, size_bytes=size_bytes))
    assert given == [Budget(steps=100 * n, size_bytes=size_bytes - n * SIZE_BYTES_PER_OPERATION) for n in (5, 7, 6, 4)]


def test_a_search_that_ends_says_which_budget_ended_it(tmp_path: Path) -> None:
    events = list(by_construction(Random(3), 60, 4, keys=2, cas=0))
    part = part_of(tmp_path / "run", [e if e.value is None else replace(e, value=e.value % 3) for e in events])
    bucket = open_bucket(*map(Path, part.paths), True)
    few_steps = judge(part, Budget(steps=130))
    assert {reason.split(": ")[1] for _, reason in few_steps.unknown} == {"the budget of 130 steps ran out"}
    size_bytes = int(bucket.operations.sum()) * SIZE_BYTES_PER_OPERATION + 1
    few_bytes = judge(part, Budget(size_bytes=size_bytes))
    assert {reason.split(": ")[1] for _, reason in few_bytes.unknown} == {f"the budget of {size_bytes} bytes ran out"}


def test_findings_of_buckets_add_up() -> None:
    """The counts of a verdict are sums, and its reason is that of the first key by name."""
    first = BucketFinding(2, 20, 0, 7, (), 0, (("b", "key b: x"),), ())
    second = BucketFinding(3, 30, 4, 5, (), 0, (("a", "key a: y"),), ())
    verdict = combine([first, second])  # type: ignore[arg-type]
    assert verdict.reason == "key a: y (and 1 keys more)"
    assert verdict.looked_at == {"keys": 5, "operations": 50, "steps": 12, "unknown_keys": 2}
    nothing = combine([replace(first, unknown=()), replace(second, unknown=(), answered=0)])  # type: ignore[arg-type]
    assert (nothing.validity, nothing.reason) == (Validity.UNKNOWN, judge_keys.NOTHING_ANSWERED)
    assert combine([replace(second, unknown=())]).validity is Validity.VALID  # type: ignore[arg-type]
    unseen = combine([replace(second, unknown=(), unseen=(("k", 2),)), replace(second, unknown=(), unseen=(("j", 3),))])  # type: ignore[arg-type]
    assert unseen.looked_at["unseen_keys"] == 2
    assert "of j, k" in unseen.reason and "5 acknowledged operations" in unseen.reason


def searched_keys(folder: Path) -> tuple[Operations, Int8]:
    """Three keys that are judged in a few steps, and one with a wrong answer at its end that takes more."""
    rng = Random(7)
    events = list(by_construction(rng, 12, 3, keys=3, cas=0))
    script = Script("large")
    for round_ in range(12):
        for process in range(4):
            script.invoke(process, "write", process % 2)
        for process in range(4):
            script.ok(process)
        script.invoke(0, "read").ok(0, round_ % 2)
    script.invoke(0, "read").ok(0, 5)
    events = [e if e.value is None else replace(e, value=e.value % 2) for e in events]
    events += [replace(e, index=len(events) + at, process=e.process + 90) for at, e in enumerate(script.events)]
    part = part_of(folder, events)
    operations = read_operations(open_bucket(*map(Path, part.paths), True), 0, 4)
    codes, _, _, _ = register.judge_keys(operations, 10**9)
    return operations, codes


def test_a_key_that_used_up_its_share_gets_the_steps_that_others_left(tmp_path: Path) -> None:
    operations, codes = searched_keys(tmp_path / "run")
    free, _ = judge_keys._search(operations, codes, Budget())
    [large] = [k for k, found in free.items() if found.code == antichain.NO_ORDER]
    steps = {k: judge_keys._search(operations, np.where(np.arange(4) == k, codes, 0), Budget())[1] for k in free}
    others = sum(steps.values()) - steps[large]
    assert len(free) > 2 and others < steps[large] / 6, steps
    twice = 2 * steps[large]
    found, taken = judge_keys._search(operations, codes, Budget(steps=twice))
    assert found == free
    assert steps[large] + others < taken <= twice
    exactly, _ = judge_keys._search(operations, codes, Budget(steps=steps[large]))
    assert exactly[large].code == antichain.OUT_OF_STEPS
    assert {k: v for k, v in exactly.items() if k != large} == {k: v for k, v in free.items() if k != large}
    nothing = judge_keys._search(operations, codes, Budget(steps=0))
    assert nothing == (dict.fromkeys(free, judge_keys._Searched(antichain.OUT_OF_STEPS, -1)), 0)


def test_the_worst_kind_leads_and_then_the_earliest(tmp_path: Path) -> None:
    stale, lost = Witness("stale read", "…"), Witness("lost write", "…")
    first = BucketFinding(2, 20, 9, 7, ((5, stale), (9, lost)), 2, (), ())
    second = BucketFinding(1, 20, 9, 7, ((3, replace(stale, summary="early")),), 1, (), ())
    verdict = combine([first, second])  # type: ignore[arg-type]
    assert [(w.kind, w.summary) for w in verdict.witnesses] == [
        ("lost write", "…"),
        ("stale read", "early"),
        ("stale read", "…"),
    ]
    assert verdict.looked_at["invalid_keys"] == verdict.looked_at["violations"] == 3
