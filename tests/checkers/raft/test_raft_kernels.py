"""Kernels of raft agree with their definitions, computed in the simplest way, on tiny random inputs."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_quorum import Evidence, Quorum

from checkers.base.stored_run import Demands
from checkers.base.verdict import Validity
from checkers.kernels.raft import ABSENT, NOWHERE, compare_all, disagreements, irregular, slice_of
from checkers.raft import log_matching as raft_logs
from checkers.raft.reading import CopiedLog, Marks, holds, must_hold

Entries = dict[int, tuple[int, int]]
entries = st.dictionaries(st.integers(0, 7), st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=8)
columns = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12)


def mismatch(a: Entries, b: Entries) -> bool:
    """CopiedLog matching, as stated: equal epochs at one offset, and a difference at or below it."""
    common = a.keys() & b.keys()
    return any(a[o][0] == b[o][0] and any(a[p] != b[p] for p in common if p <= o) for o in common)


@given(st.lists(entries.filter(bool), max_size=5))
def test_slices_compared_by_class_are_compared_as_if_one_by_one(logs: list[Entries]) -> None:
    """Logs of any extents, with and without holes: classes are the distinct logs, and pairs match each comparison."""
    slices = []
    for log in logs:
        offsets = np.array(sorted(log), np.int64)
        epochs, checksums = (np.array([log[o][i] for o in sorted(log)], d) for i, d in ((0, np.int32), (1, np.int64)))
        slices.append(slice_of(offsets, epochs, checksums, bool(np.all(np.diff(offsets) == 1))))
    class_of, compared = compare_all(slices)
    for i, a in enumerate(logs):
        for j, b in enumerate(logs):
            assert (class_of[i] == class_of[j]) == (a == b)
            common = a.keys() & b.keys()
            first = min((o for o in common if a[o] != b[o]), default=NOWHERE)
            last = max((o for o in common if a[o][0] == b[o][0]), default=NOWHERE)
            assert compared[max(class_of[i], class_of[j]), min(class_of[i], class_of[j])] == (first, last)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=9))
def test_holes_and_falls_of_one_log(rows: list[tuple[int, int]]) -> None:
    offsets, epochs = (np.array([r[i] for r in rows], d) for i, d in ((0, np.int64), (1, np.int32)))
    holes = [i for i in range(1, len(rows)) if offsets[i] != offsets[i - 1] + 1]
    falls = [i for i in range(1, len(rows)) if epochs[i] < epochs[i - 1]]
    assert irregular(offsets, epochs) == (min(holes, default=NOWHERE), min(falls, default=NOWHERE))


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=1, max_size=7), min_size=2, max_size=4)
)
def test_the_checker_agrees_with_brute_force_over_small_ranges(logs: list[list[tuple[int, int]]]) -> None:
    """Any logs at all, also ones that no Raft could make; ranges of three offsets, so that verdicts must be joined."""
    import tempfile

    evidence = Evidence([], {}, {}, [], [], {}, {}, Demands(logs=True))
    for i, log in enumerate(logs, 1):
        log = sorted(log)  # epochs never fall
        logs[i - 1] = log
        evidence.logs[f"n{i}"] = [
            {"copy": 0, "node": f"n{i}", "offset": o, "epoch": e, "checksum": c, "batch_offset": o, "batch_hash": 0}
            for o, (e, c) in enumerate(log)
        ]
        evidence.copies.append(Quorum(size=1).evidence().copies[0] | {"node": f"n{i}"})
    expected = any(mismatch(dict(enumerate(a)), dict(enumerate(b))) for a, b in combinations(logs, 2))
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as folder:
        patched.setattr(raft_logs, "RANGE", 3)
        patched.setattr(raft_logs, "RANGES_PER_PART", 2)
        verdict = evidence.judge(Path(folder), "log-matching")["log-matching"]
    assert verdict.validity is (Validity.INVALID if expected else Validity.VALID), verdict
    for witness in verdict.witnesses:
        a, b = (dict(enumerate(logs[int(n[1:]) - 1])) for n in witness.facts["nodes"])
        d, e = witness.facts["offset"], witness.facts["equal_epoch_at"]
        assert a[d] != b[d] and a[e][0] == b[e][0] and d <= e and all(a[o] == b[o] for o in range(d))


@given(columns)
def test_disagreements_are_one_pair_per_key_with_two_values(rows: list[tuple[int, int]]) -> None:
    keys, values = (np.array([r[i] for r in rows], np.int64) for i in (0, 1))
    first, other = disagreements(keys, values)
    found = {int(keys[a]): (int(values[a]), int(values[b])) for a, b in zip(first, other, strict=True)}
    expected = {k for k, _ in rows if len({v for key, v in rows if key == k}) > 1}
    assert set(found) == expected and len(first) == len(expected)
    assert all(one != two for one, two in found.values())
    assert all(keys[a] == keys[b] and a < b for a, b in zip(first, other, strict=True))


def log(ends: list[int], hashes: list[int], last_epoch: int) -> CopiedLog:
    return CopiedLog(np.array(ends, np.int64), np.array(hashes, np.int64), ends[-1] if ends else 0, last_epoch)


def mark(offset: int, value: int | None, epoch: int) -> Marks:
    return Marks(np.array([offset]), np.array([value or 0]), np.array([value is not None]), np.array([epoch]))


@pytest.mark.parametrize(
    ("held", "lacks", "the_log", "the_mark"),
    [
        (True, False, log([2, 5], [7, 8], 1), mark(5, 8, 1)),
        (False, True, log([2, 5], [7, 8], 1), mark(5, 9, 1)),
        (False, True, log([2, 5], [7, 8], 1), mark(3, 9, 1)),  # no batch ends where the committed one did
        (False, True, log([2, 5], [7, 8], 1), mark(6, 8, 1)),
        (False, False, log([2, 5], [7, 8], 1), mark(3, None, 1)),  # inside a batch: nothing is known
        (False, True, log([2, 5], [7, 8], 1), mark(6, None, 1)),
        (False, True, log([], [], -1), mark(1, 3, 1)),
    ],
)
def test_what_a_log_holds(held: bool, lacks: bool, the_log: CopiedLog, the_mark: Marks) -> None:
    assert [bool(x[0]) for x in holds(the_log, the_mark)] == [held, lacks]


@pytest.mark.parametrize(
    ("must", "end", "last_epoch"),
    [
        (True, 3, 2),  # an entry of a later epoch, though shorter
        (True, 5, 1),  # of the same epoch, and as long
        (False, 4, 1),  # of the same epoch, behind
        (False, 9, 0),  # a longer tail of an older epoch
        (False, 0, ABSENT),
    ],
)
def test_who_must_hold_a_mark_at_5_of_epoch_1(must: bool, end: int, last_epoch: int) -> None:
    assert bool(must_hold(log([end] if end else [], [1] if end else [], last_epoch), mark(5, 3, 1))[0]) is must
