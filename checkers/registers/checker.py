"""Judges every key as a register.  A history is linearizable iff that of each object is (Herlihy & Wing 1990).

A bucket of keys (`sealing/key_buckets.py`) is one part.  The kernel for unique values
(`kernels/register_unique_values.py`) judges all keys of a bucket in one call.  Keys in which values repeat go to the
search (`kernels/register_antichain.py`), which may need many more steps.  The search first gives each key the same
share of the budget.  Keys that used up their share then get the unused steps, one key after another.
`smallest_window.py` reduces each wrong key to the smallest window that shows the violation, and the independent search
judges the window again.

If a key needs more steps or bytes than its budget, only this key is unknown.  If a bucket does not fit into memory, its
keys are judged a few at a time.

A failed cas did not happen.  If the parameter `failed_cas` is "observed", as it is for runs, a cas that failed as a
mismatch is also an observation: the register did not hold the expected value.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from checkers.base.checker import Budget, Checker, Part
from checkers.base.history import MalformedHistory
from checkers.base.independent_search import Disagreement
from checkers.base.verdict import MAX_WITNESSES, Witness
from checkers.kernels import register_antichain as antichain
from checkers.kernels import register_unique_values as register
from checkers.kernels.operations import OTHER_FUNCTION
from checkers.registers import explain_repeated_values, explain_unique_values
from checkers.registers.judge_keys import OBSERVED, BucketFinding, JudgedKeys, combine
from checkers.sealing.key_buckets import Bucket, open_bucket, pieces, read_key, read_operations
from checkers.sealing.sealed_history import no_functions_of_registers

if TYPE_CHECKING:
    from checkers.base.stored_run import StoredRun


def split(files: StoredRun) -> Sequence[Part]:
    """Return one part per bucket, the bucket with the most events first.

    Raises MalformedHistory if the run was never sealed.
    """
    if not files.buckets.is_dir():
        raise MalformedHistory(f"{files.root}: the history is not sealed, there is no folder {files.buckets.name}")
    paths = sorted(files.buckets.glob("bucket-*.parquet"))
    return [Part((str(path), str(files.history)), {"failed_cas": OBSERVED}) for path in paths]


def judge(part: Part, budget: Budget) -> BucketFinding:
    path, history = map(Path, part.paths)
    return judge_bucket(open_bucket(path, history, part.params.get("failed_cas") == OBSERVED), budget)


def judge_bucket(bucket: Bucket, budget: Budget) -> BucketFinding:
    """Judge the keys of a bucket, as many at a time as fit into the memory budget."""
    judged = _JudgedBucket(bucket, budget)
    in_all = int(bucket.operations.sum())
    for first, end, needed_bytes in pieces(bucket, budget.size_bytes):
        if needed_bytes > budget.size_bytes:
            judged.leave_out(first, needed_bytes)
            continue
        here = int(bucket.operations[first:end].sum())
        share = budget.steps * here // in_all if here else budget.steps
        judged.judge_piece(first, end, Budget(share, budget.size_bytes - needed_bytes))
    return judged.with_witnesses()


class _JudgedBucket(JudgedKeys):
    """The keys of a bucket that have been judged so far."""

    def __init__(self, bucket: Bucket, budget: Budget) -> None:
        super().__init__(bucket.keys, budget)
        self.bucket = bucket
        self.too_large: list[tuple[str, str]] = []
        self.strange: dict[str, list[str]] | None = None  # key -> functions that no register has; loaded lazily

    def judge_piece(self, first: int, end: int, search: Budget) -> None:
        """Judge keys number `first` to `end` - 1.

        search: budget that the searches for all of these keys share
        """
        self.judge_operations(first, read_operations(self.bucket, first, end), search)

    def leave_out(self, k: int, needed_bytes: int) -> None:
        name = self.bucket.keys[k]
        sentence = f"key {name}: its operations need {needed_bytes} bytes and the budget is {self.budget.size_bytes}"
        self.too_large.append((name, sentence))

    def why_unknown(self, k: int, code: int, searched: bool) -> str:
        """Return a sentence that says why a key could not be judged.

        code: result code of the search if `searched`, else of the kernel for unique values
        """
        key = self.bucket.keys[k]
        if searched:
            return _ran_out(key, code, self.budget)
        if code == register.OUT_OF_STEPS:
            return f"key {key}: the budget of {self.budget.steps} steps ran out"
        if self.bucket.unfit[k] == OTHER_FUNCTION:
            if self.strange is None:
                self.strange = no_functions_of_registers(self.bucket.history)
            if key in self.strange:
                return f"key {key}: {', '.join(self.strange[key])} is not an operation of a register"
            from checkers.sealing.walk import contradiction  # the check of a single file needs no sealing

            return f"key {key}: {contradiction(self.bucket.history, key)}"
        return f"key {key}: the value -2**63 stands for nil and cannot be judged"

    def with_witnesses(self) -> BucketFinding:
        """Return the finding on the whole bucket.  The first MAX_WITNESSES wrong keys by name get a witness."""
        unknown = [(self.names[k], self.why_unknown(k, code, searched)) for k, code, searched in self.undecided]
        unknown += self.too_large
        witnesses: list[tuple[int, Witness]] = []
        invalid = 0
        for name, k, certain_at in sorted((self.names[k], k, at) for k, at in self.wrong):
            invalid += 1
            if len(witnesses) < MAX_WITNESSES:
                try:
                    witnesses.append(_explain(self.bucket, k, certain_at))
                except Disagreement as problem:
                    invalid -= 1
                    unknown.append((name, str(problem)))
        return self.finding(witnesses, unknown, invalid)


def _explain(bucket: Bucket, k: int, certain_at: int | None) -> tuple[int, Witness]:
    """Return the index of the answer that no order explains, and the witness of key number k.

    certain_at: position at which the search had proved the violation; None if the linear kernel found it
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


def _ran_out(key: str, code: int, budget: Budget) -> str:
    limit = f"{budget.size_bytes} bytes" if code == antichain.OUT_OF_BYTES else f"{budget.steps} steps"
    return f"key {key}: the budget of {limit} ran out"


LINEARIZABILITY = Checker(
    name="linearizability",
    title="Linearizability",
    question="Can all answers about each key be explained by one order that respects real time?",
    split=split,
    judge=judge,
    combine=lambda _, findings: combine(findings),
    needs=frozenset({"history", "model"}),
)
