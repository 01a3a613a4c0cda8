"""Linearizability of every key, on its own (Herlihy & Wing 1990): a history is linearizable iff each object's is.

One part per bucket.  The kernel for unique values (`kernels/register.py`) judges all keys of a bucket in one call; keys
in which values repeat go to the search (`kernels/antichain.py`), which may need much more: first each is given the same
share of the budget, then those that ran out get what is left, one after another.  For each key found wrong,
`register_witness.py` or `repeated_witness.py` makes the smallest window that shows why, and puts it before the
independent search.

A failed cas did not happen.  A part with the parameter `failed_cas` = "observed" also takes one that failed as a
mismatch for an observation: the register was seen not to hold what it expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from checkers import register_witness, repeated_witness
from checkers.bucket import Bucket, function_names, read_bucket, size_bytes
from checkers.checker import Budget, Checker, Part, RunFiles
from checkers.history import MalformedHistory
from checkers.kernels import antichain, register
from checkers.kernels.operations import HAS_MISMATCH, KINDS, NIL, OTHER_FUNCTION, Int8, Operations, pair_events
from checkers.verdict import MAX_WITNESSES, Validity, Verdict, Witness

DID_NOT_HAPPEN, OBSERVED = "did-not-happen", "observed"
"""The two readings of a failed cas: the parameter `failed_cas` of a part, DID_NOT_HAPPEN if it has none."""

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
    bucket = read_bucket(path, part.params.get("failed_cas") == OBSERVED)
    operations = pair_events(bucket.events, len(bucket.keys), bucket.process_count)
    codes, _, _, steps = register.judge_keys(operations, budget.steps)
    repeated, taken = _search(operations, codes, Budget(budget.steps - int(steps), budget.size_bytes - needed_bytes))
    steps += taken
    witnesses: list[tuple[int, Witness]] = []
    unknown: list[str] = []
    invalid = 0
    for k in sorted(codes.nonzero()[0].tolist(), key=lambda k: bucket.keys[k]):
        if k in repeated and repeated[k].code == antichain.LINEARIZABLE:
            continue
        if k in repeated and repeated[k].code != antichain.NO_ORDER:
            unknown.append(_ran_out(bucket.keys[k], repeated[k].code, budget))
            continue
        if k not in repeated and codes[k] < register.FIRST_INVALID:
            unknown.append(_why_unknown(bucket, operations, k, int(codes[k]), budget))
            continue
        invalid += 1
        if len(witnesses) < MAX_WITNESSES:
            try:
                if k in repeated:
                    witnesses.append(repeated_witness.explain(bucket, operations, k, repeated[k].position))
                else:
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


@dataclass(frozen=True, slots=True)
class _Searched:
    """What the search said of a key: see `antichain.judge_key`."""

    code: int
    position: int


def _search(operations: Operations, codes: Int8, budget: Budget) -> tuple[dict[int, _Searched], int]:
    """Judge the keys whose values repeat or whose failed cas are observations; by key, and the steps taken in all."""
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
    if code == antichain.OUT_OF_BYTES:
        return f"key {key}: more than {budget.size_bytes} bytes of possible orders, as many as the budget allows"
    return f"key {key}: the budget of {budget.steps} steps ran out"


def _why_unknown(bucket: Bucket, operations: Operations, k: int, code: int, budget: Budget) -> str:
    """Why one key could not be judged, as a sentence."""
    key = bucket.keys[k]
    if code == register.OUT_OF_STEPS:
        return f"key {key}: the budget of {budget.steps} steps ran out"
    if operations.unfit[k] == OTHER_FUNCTION:
        strange = [name for name in function_names(bucket.path, key) if name not in KINDS]
        return f"key {key}: {', '.join(strange)} is not an operation of a register"
    return f"key {key}: the value -2**63 stands for nil and cannot be judged"


LINEARIZABILITY = Checker(
    name="linearizability",
    title="Linearizability",
    question="Can all answers about each key be explained by one order that respects real time?",
    split=split,
    judge=judge,
    combine=combine,
)
