"""Judges every key as a register.  A history is linearizable iff that of each object is (Herlihy & Wing 1990).

There is one part per bucket (`sealing/key_buckets.py`).  The kernel for unique values
(`kernels/registers/unique_values.py`) judges all keys of a bucket in one call.  Keys in which values repeat go to the
search (`kernels/registers/antichain.py`), which may need many more steps.  There each key first gets the same share of
the budget.  Keys that used up their share then get the steps that are left, one key after another.  For each wrong key,
`shrink_witness_unique_values.py` or `explain_repeated_values.py` makes the smallest window that shows why, and
the independent search judges it again.

If a key needs more steps or bytes than its budget, only this key is unknown.  If a bucket does not fit into memory, its
keys are judged a few at a time.

A failed cas did not happen.  With the parameter `failed_cas` = "observed", which runs have, a cas that failed as a
mismatch is also an observation: the register did not hold the expected value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from checkers.base.arrays import Int8
from checkers.base.checker import Budget, Checker, Part
from checkers.base.history import MalformedHistory
from checkers.base.independent_search import Disagreement
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import MAX_WITNESSES, Validity, Verdict, Witness, nothing_shown
from checkers.kernels.history.numbering import drop_failed_cas
from checkers.kernels.operations import HAS_MISMATCH, KINDS, NIL, OPEN, OTHER_FUNCTION, WRITE, Operations
from checkers.kernels.registers import antichain
from checkers.kernels.registers import unique_values as register
from checkers.registers import explain_repeated_values, explain_unique_values
from checkers.sealing.client_rows import contradiction
from checkers.sealing.history_rows import functions_besides
from checkers.sealing.key_buckets import (
    SIZE_BYTES_PER_OPERATION,
    Bucket,
    open_bucket,
    pieces,
    read_key,
    read_operations,
)

DID_NOT_HAPPEN, OBSERVED = "did-not-happen", "observed"
"""The two meanings of a failed cas: values of the parameter `failed_cas` of a part.  Default: DID_NOT_HAPPEN.

Clients of runs fail a cas as a mismatch only if the answer stated it, so runs are judged with OBSERVED.  A history from
elsewhere may call any refusal so."""

OBSERVERS = ("read", "cas")
"""The functions whose answers show something of a register.  A cas that succeeded saw the expected value."""

NOTHING_ANSWERED = "no operation on a key got an answer, so there was nothing to judge"

KINDS_WORST_FIRST = ("lost write", "value from nowhere", "order cycle", "read against acknowledgement", "stale read")


@dataclass(frozen=True, slots=True)
class BucketFinding:
    """Findings of the checker in one bucket.

    keys, operations: how many were judged.  answered: how many operations returned.  steps: steps of the kernels.
    witnesses: of the first MAX_WITNESSES wrong keys, as (index of the answer that no order explains, witness).
    invalid_keys: how many keys are wrong.  unknown: (key, reason) for every key that could not be judged.
    unseen: (key, number of acknowledged writes) for every key of which no answer shows anything.
    """

    keys: int
    operations: int
    answered: int
    steps: int
    witnesses: tuple[tuple[int, Witness], ...]
    invalid_keys: int
    unknown: tuple[tuple[str, str], ...]
    unseen: tuple[tuple[str, int], ...]


def split(files: StoredRun) -> Sequence[Part]:
    """One part per bucket, the one with most to do first.  Raises MalformedHistory if the run was never sealed."""
    if not files.buckets.is_dir():
        raise MalformedHistory(f"{files.root}: the history is not sealed, there is no folder {files.buckets.name}")
    paths = sorted(files.buckets.glob("bucket-*.parquet"))
    return [Part((str(path), str(files.history)), {"failed_cas": OBSERVED}) for path in paths]


def judge(part: Part, budget: Budget) -> BucketFinding:
    path, history = map(Path, part.paths)
    bucket = open_bucket(path, history, part.params.get("failed_cas") == OBSERVED)
    judged = _JudgedKeys(bucket, budget)
    in_all = int(bucket.operations.sum())
    for first, end, needed_bytes in pieces(bucket, budget.size_bytes):
        if needed_bytes > budget.size_bytes:
            judged.too_large(first, needed_bytes)
            continue
        here = int(bucket.operations[first:end].sum())
        share = budget.steps * here // in_all if here else budget.steps
        judged.judge_piece(first, end, Budget(share, budget.size_bytes - needed_bytes))
    return judged.finding()


def judge_operations(keys: Sequence[str], operations: Operations, budget: Budget, failed_cas: str) -> Verdict | None:
    """Judge operations without a file.  Returns None if a key is wrong or undecided: a witness needs a run's files.

    operations: as `numbered_operations` returns them, those of key k first in `keys`.
    """
    needed_bytes = len(operations.kind) * SIZE_BYTES_PER_OPERATION
    if needed_bytes > budget.size_bytes:
        return None
    observed = failed_cas == OBSERVED
    operations = operations if observed else drop_failed_cas(operations)
    nowhere = Path()
    of_key = np.diff(operations.offsets)
    bucket = Bucket(nowhere, nowhere, keys, of_key, operations.positions, operations.unfit, observed)
    judged = _JudgedKeys(bucket, budget)
    judged.judge_operations(
        0, operations, Budget(budget.steps, budget.size_bytes - len(operations.kind) * SIZE_BYTES_PER_OPERATION)
    )
    if judged.wrong or judged.unknown:
        return None
    return combine(None, [judged.finding()])


class _JudgedKeys:
    """The keys of a bucket that were judged so far."""

    def __init__(self, bucket: Bucket, budget: Budget) -> None:
        self.bucket, self.budget = bucket, budget
        self.keys = self.operations = self.answered = self.steps = 0
        self.wrong: list[tuple[str, int, int | None]] = []  # name, number, position where the search was certain
        self.unknown: list[tuple[str, str]] = []
        self.unseen: list[tuple[str, int]] = []
        self.strange: dict[str, list[str]] | None = None  # key -> functions that no register has; read on first use

    def judge_piece(self, first: int, end: int, search: Budget) -> None:
        """Judge keys number `first` to `end` - 1.  search: the budget of the search for all of them together."""
        self.judge_operations(first, read_operations(self.bucket, first, end), search)

    def judge_operations(self, first: int, ops: Operations, search: Budget) -> None:
        """Judge the keys from number `first` on, given their operations."""
        codes, _, _, steps = register.judge_keys(ops, self.budget.steps)
        searched, taken = _search(ops, codes, search)
        self.keys += len(ops.positions)
        self.operations += len(ops.kind)
        self.answered += int(np.count_nonzero(ops.ret != OPEN))
        self.unseen += [(self.bucket.keys[first + k], returned) for k, returned in _unseen(ops)]
        self.steps += int(steps) + taken
        for k in codes.nonzero()[0].tolist():
            name = self.bucket.keys[first + k]
            if k not in searched and codes[k] < register.FIRST_INVALID:
                self.unknown.append((name, self.why_unknown(name, int(codes[k]), int(ops.unfit[k]))))
            elif k not in searched:
                self.wrong.append((name, first + k, None))
            elif searched[k].code == antichain.NO_ORDER:
                self.wrong.append((name, first + k, searched[k].position))
            elif searched[k].code != antichain.LINEARIZABLE:
                self.unknown.append((name, _ran_out(name, searched[k].code, self.budget)))

    def too_large(self, k: int, needed_bytes: int) -> None:
        name = self.bucket.keys[k]
        sentence = f"key {name}: its operations need {needed_bytes} bytes and the budget is {self.budget.size_bytes}"
        self.unknown.append((name, sentence))

    def why_unknown(self, key: str, code: int, unfit: int) -> str:
        """One sentence: why a key could not be judged.  code: of the kernel.  unfit: as in `Operations`."""
        if code == register.OUT_OF_STEPS:
            return f"key {key}: the budget of {self.budget.steps} steps ran out"
        if unfit == OTHER_FUNCTION:
            if self.strange is None:
                self.strange = functions_besides(self.bucket.history, KINDS)
            if key in self.strange:
                return f"key {key}: {', '.join(self.strange[key])} is not an operation of a register"
            return f"key {key}: {contradiction(self.bucket.history, key)}"
        return f"key {key}: the value -2**63 stands for nil and cannot be judged"

    def finding(self) -> BucketFinding:
        """The finding on the whole bucket.  The first MAX_WITNESSES wrong keys by name get a witness."""
        witnesses: list[tuple[int, Witness]] = []
        invalid = 0
        for name, k, certain_at in sorted(self.wrong):
            invalid += 1
            if len(witnesses) < MAX_WITNESSES:
                try:
                    witnesses.append(_explain(self.bucket, k, certain_at))
                except Disagreement as problem:
                    invalid -= 1
                    self.unknown.append((name, str(problem)))
        unknown = tuple(sorted(self.unknown))
        return BucketFinding(
            self.keys,
            self.operations,
            self.answered,
            self.steps,
            tuple(witnesses),
            invalid,
            unknown,
            tuple(self.unseen),
        )


def _unseen(operations: Operations) -> list[tuple[int, int]]:
    """(number of a key that may have been written and of which no answer shows anything, its acknowledged writes)."""
    returned = operations.ret != OPEN
    firsts = operations.offsets[:-1][np.diff(operations.offsets) > 0]  # `reduceat` cannot count an empty key
    if not len(firsts):
        return []
    shows = np.logical_or.reduceat(returned & (operations.kind != WRITE), firsts)
    writes = np.add.reduceat(returned & (operations.kind == WRITE), firsts, dtype=np.int64)
    keys = np.flatnonzero(np.diff(operations.offsets) > 0)
    return [(int(keys[k]), int(writes[k])) for k in np.flatnonzero(~shows)]


def _explain(bucket: Bucket, k: int, certain_at: int | None) -> tuple[int, Witness]:
    """The witness of key number k, and the index of the answer that no order explains.

    certain_at: the position at which the search was certain; None if the linear kernel found the violation.
    """
    operations, alone = read_key(bucket, k), bucket.alone(k)
    key = register.key_of(operations, 0)
    try:
        if certain_at is None:
            story = explain_unique_values.story_of(alone, operations, key)
        else:
            story = explain_repeated_values.story_of(alone, operations, key, certain_at)
    except Disagreement as problem:
        raise Disagreement(f"key {bucket.keys[k]}: {problem}; this is an error of the checker") from problem
    return explain_unique_values.witness_of(story)


def combine(_: StoredRun | None, findings: Sequence[BucketFinding]) -> Verdict:
    """Invalid if a key is; else unknown if a key could not be judged, or if no answer shows anything of it."""
    looked_at = {
        "keys": sum(f.keys for f in findings),
        "operations": sum(f.operations for f in findings),
        "steps": sum(f.steps for f in findings),
    }
    unknown = [sentence for _, sentence in sorted(pair for f in findings for pair in f.unknown)]
    reason = ""
    if unknown:
        reason = unknown[0] + (f" (and {len(unknown) - 1} keys more)" if len(unknown) > 1 else "")
        looked_at["unknown_keys"] = len(unknown)
    found = sorted((pair for f in findings for pair in f.witnesses), key=_worst_first)
    if found:
        looked_at["invalid_keys"] = sum(f.invalid_keys for f in findings)
        looked_at["violations"] = looked_at["invalid_keys"]  # the checker looks for one violation per key
        kept = tuple(witness for _, witness in found[:MAX_WITNESSES])
        return Verdict(Validity.INVALID, looked_at, reason, kept)
    if unknown:
        return Verdict(Validity.UNKNOWN, looked_at, reason)
    if not sum(f.answered for f in findings):
        return Verdict(Validity.UNKNOWN, looked_at, NOTHING_ANSWERED)
    if unseen := sorted(pair for f in findings for pair in f.unseen):
        looked_at["unseen_keys"] = len(unseen)
        names = [key for key, _ in unseen]
        return Verdict(Validity.UNKNOWN, looked_at, nothing_shown(OBSERVERS, names, sum(n for _, n in unseen)))
    return Verdict(Validity.VALID, looked_at)


def _worst_first(found: tuple[int, Witness]) -> tuple[int, int]:
    index, witness = found
    return KINDS_WORST_FIRST.index(witness.kind), index


@dataclass(frozen=True, slots=True)
class _Searched:
    """Result of the search for a key (`antichain.judge_key`)."""

    code: int
    position: int


def _search(operations: Operations, codes: Int8, budget: Budget) -> tuple[dict[int, _Searched], int]:
    """Judge the keys whose values repeat, or whose failed cas are observations.

    Returns (number of a key -> what the search returned, steps of all searches).
    """
    sought = np.isin(codes, (register.PRODUCED_TWICE, register.PRODUCES_INITIAL))
    sought |= (codes == register.UNFIT) & (operations.unfit == HAS_MISMATCH)
    chosen = np.flatnonzero(sought).astype(np.int32)
    found: dict[int, _Searched] = {}
    if not len(chosen) or budget.steps <= 0:
        return {int(k): _Searched(antichain.OUT_OF_STEPS, -1) for k in chosen}, 0
    nil = np.array([NIL], np.int64)
    shares = np.full(len(chosen), max(1, budget.steps // len(chosen)), np.int64)
    code, position, steps = antichain.judge_keys(operations, chosen, nil, shares, budget.size_bytes)
    for i, k in enumerate(chosen.tolist()):
        found[k] = _Searched(int(code[i]), int(position[i]))
    taken = int(steps.sum())
    for k in chosen[code == antichain.OUT_OF_STEPS].tolist():
        left = np.array([max(0, budget.steps - taken)], np.int64)
        if left[0] > shares[0]:
            again = np.array([k], np.int32)
            code, position, steps = antichain.judge_keys(operations, again, nil, left, budget.size_bytes)
            found[k] = _Searched(int(code[0]), int(position[0]))
            taken += int(steps[0])
    return found, taken


def _ran_out(key: str, code: int, budget: Budget) -> str:
    limit = f"{budget.size_bytes} bytes" if code == antichain.OUT_OF_BYTES else f"{budget.steps} steps"
    return f"key {key}: the budget of {limit} ran out"


LINEARIZABILITY = Checker(
    name="linearizability",
    title="Linearizability",
    question="Can all answers about each key be explained by one order that respects real time?",
    split=split,
    judge=judge,
    combine=combine,
    needs=frozenset({"history", "model"}),
)
