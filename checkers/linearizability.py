"""Linearizability of every key, on its own (Herlihy & Wing 1990): a history is linearizable iff each object's is.

One part per bucket.  The kernel (`kernels/register.py`) judges all keys of a bucket in one call; for each key it finds
wrong, `register_witness.py` makes the smallest window that shows why, and puts it before the independent search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from checkers import register_witness
from checkers.bucket import Bucket, function_names, read_bucket, read_rows, size_bytes
from checkers.checker import Budget, Checker, Part, RunFiles
from checkers.history import MalformedHistory
from checkers.kernels import register
from checkers.kernels.operations import KINDS, OTHER_FUNCTION, Operations, pair_events
from checkers.verdict import MAX_WITNESSES, Validity, Verdict, Witness

KINDS_WORST_FIRST = ("lost write", "value from nowhere", "order cycle", "stale read")


@dataclass(frozen=True, slots=True)
class BucketFinding:
    """What one bucket holds.  keys, operations: how many were judged; steps: taken by the kernel.

    witnesses: of the first MAX_WITNESSES keys found wrong, as (index of the answer no order explains, witness).
    invalid_keys: how many were found wrong.  unknown: a sentence for every key that could not be judged.
    """

    keys: int
    operations: int
    steps: int
    witnesses: tuple[tuple[int, Witness], ...]
    invalid_keys: int
    unknown: tuple[str, ...]


def split(files: RunFiles) -> Sequence[Part]:
    """One part per bucket.  Raises MalformedHistory if the run was never sealed."""
    if not files.buckets.is_dir():
        raise MalformedHistory(f"{files.root}: the history is not sealed, there is no folder {files.buckets.name}")
    return [Part((str(path),)) for path in sorted(files.buckets.glob("bucket-*.parquet"))]


def judge(part: Part, budget: Budget) -> BucketFinding:
    path = Path(part.paths[0])
    needed_bytes = size_bytes(path)
    if needed_bytes > budget.size_bytes:
        reason = f"{path.name} needs {needed_bytes} bytes and the budget is {budget.size_bytes}"
        return BucketFinding(0, 0, 0, (), 0, (reason,))
    bucket = read_bucket(path)
    operations = pair_events(bucket.events, len(bucket.keys), bucket.process_count)
    codes, lefts, rights, steps = register.judge_keys(operations, budget.steps)
    witnesses: list[tuple[int, Witness]] = []
    unknown: list[str] = []
    invalid = 0
    for k in sorted(codes.nonzero()[0].tolist(), key=lambda k: bucket.keys[k]):
        if codes[k] < register.FIRST_INVALID:
            unknown.append(_why_unknown(bucket, operations, k, int(codes[k]), int(lefts[k]), int(rights[k]), budget))
            continue
        invalid += 1
        if len(witnesses) < MAX_WITNESSES:
            try:
                witnesses.append(register_witness.explain(bucket, operations, k))
            except register_witness.Disagreement as problem:
                invalid -= 1
                unknown.append(str(problem))
    return BucketFinding(len(codes), len(operations.kind), int(steps), tuple(witnesses), invalid, tuple(unknown))


def combine(files: RunFiles, findings: Sequence[BucketFinding]) -> Verdict:
    """Invalid if any key is; unknown if any could not be judged."""
    looked_at = {
        "keys": sum(f.keys for f in findings),
        "operations": sum(f.operations for f in findings),
        "steps": sum(f.steps for f in findings),
    }
    unknown = [sentence for f in findings for sentence in f.unknown]
    reason = ""
    if unknown:
        reason = unknown[0] + (f" (and {len(unknown) - 1} keys more)" if len(unknown) > 1 else "")
        looked_at["unknown_keys"] = len(unknown)
    found = sorted((pair for f in findings for pair in f.witnesses), key=_worst_first)
    if found:
        looked_at["invalid_keys"] = sum(f.invalid_keys for f in findings)
        kept = tuple(witness for _, witness in found[:MAX_WITNESSES])
        return Verdict(Validity.INVALID, looked_at, reason, kept)
    if unknown:
        return Verdict(Validity.UNKNOWN, looked_at, reason)
    if not looked_at["keys"]:
        return Verdict(Validity.NOT_APPLICABLE, reason="no client asked anything of a key")
    return Verdict(Validity.VALID, looked_at)


def _worst_first(found: tuple[int, Witness]) -> tuple[int, int]:
    index, witness = found
    return KINDS_WORST_FIRST.index(witness.kind), index


def _why_unknown(
    bucket: Bucket, operations: Operations, k: int, code: int, left: int, right: int, budget: Budget
) -> str:
    """Why one key could not be judged, as a sentence."""
    key = bucket.keys[k]
    if code == register.OUT_OF_STEPS:
        return f"key {key}: the budget of {budget.steps} steps ran out"
    if code == register.UNFIT:
        if operations.unfit[k] == OTHER_FUNCTION:
            strange = [name for name in function_names(bucket.path, key) if name not in KINDS]
            return f"key {key}: {', '.join(strange)} is not an operation of a register"
        return f"key {key}: the value -2**63 stands for nil and cannot be judged"
    first = operations.offsets[k]
    if code == register.PRODUCES_INITIAL:
        [event] = read_rows(bucket.path, [operations.invoked[first + left]])
        return f"key {key}: index {event['index']} writes nil, the initial value, so a read of it has no one source"
    earlier, later = read_rows(bucket.path, [operations.invoked[first + op] for op in (left, right)])
    value = later["value2"] if later["f"] == "cas" else later["value"]
    return (
        f"key {key}: the value {value} is written twice, at indices {earlier['index']} and {later['index']}, "
        "so a read of it has no one source"
    )


LINEARIZABILITY = Checker(
    name="linearizability",
    title="Linearizability",
    question="Can all answers about each key be explained by one order that respects real time?",
    split=split,
    judge=judge,
    combine=combine,
)
