"""Judges whole keys of a run that is not sealed yet, with the function that judges the sealed run."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.checker import Budget
from checkers.base.columns import read_stream
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Verdict, Witness
from checkers.registers.checker import LINEARIZABILITY
from checkers.sealing.seal import write_buckets

BUDGET = Budget(steps=50_000_000, size_bytes=500_000_000)
"""The budget of one call.  A key that needs more is judged only in the sealed run."""


def judge_prefix(stream: Path, keys: Collection[str]) -> Verdict:
    """Judge the linearizability of some keys from everything that an Arrow stream (`history.arrows`) holds so far.

    Raises MalformedHistory if there is no such stream.
    """
    history = read_stream(stream)
    wanted = history.filter(pc.is_in(history["key"], value_set=pa.array(sorted(keys), pa.string())))
    with tempfile.TemporaryDirectory(prefix=".online-", dir=stream.parent) as name:  # a killed run leaves it to its run
        files = StoredRun(Path(name))
        pq.write_table(wanted, files.history)
        write_buckets(wanted, files.buckets)
        findings = [LINEARIZABILITY.judge(part, BUDGET) for part in LINEARIZABILITY.split(files)]
        verdict = LINEARIZABILITY.combine(files, findings)
        return replace(verdict, witnesses=tuple(_so_far(witness) for witness in verdict.witnesses))


def _so_far(witness: Witness) -> Witness:
    """The witness without the claim that needs the whole history: that a value was *never* read."""
    if witness.kind != "lost write":
        return witness
    facts = {name: fact for name, fact in witness.facts.items() if name not in ("guilty", "so_far")}
    so_far = witness.facts["so_far"]
    return replace(witness, kind=so_far["kind"], summary=so_far["summary"], facts=facts)
