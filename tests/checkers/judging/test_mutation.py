"""The rows of a clean run that the mutation check falsifies: only those on which the verdict must depend."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from toy_quorum import Quorum

from checkers.base.history import Type
from checkers.judging import pipeline


def clean_run() -> pipeline.Evidence:
    """Three writes of one key, each read."""
    quorum = Quorum()
    quorum.elect("n1")
    for _ in range(3):
        quorum.write("k0")
    found = quorum.evidence()
    reads = [row | {"f": "read", "process": 50 + row["process"], "index": 100 + row["index"]} for row in found.history]
    found.history += reads
    return pipeline.Evidence(found.history, found.logs, found.traces, found.copies)


def writes(evidence: pipeline.Evidence, kind: Type) -> list[dict[str, Any]]:
    return [row for row in evidence.history if row["f"] == "write" and row["type"] == kind]


@pytest.mark.parametrize(
    "mutate",
    [pipeline.acknowledged_write_that_failed, pipeline.answer_from_the_past, pipeline.logged_value_never_written],
)
def test_a_value_that_two_writes_wrote_is_left_as_it_is(mutate: pipeline.Mutate) -> None:
    assert mutate(clean_run(), Random(1)) is not None
    evidence = clean_run()
    invoked = writes(evidence, Type.INVOKE)
    evidence.history += [row | {"index": 10_000 + row["index"], "process": 99} for row in invoked]
    assert mutate(evidence, Random(1)) is None


def test_the_value_of_another_key_does_not_count(seed: int = 1) -> None:
    evidence = clean_run()
    evidence.history += [row | {"key": "another", "process": 99} for row in writes(evidence, Type.INVOKE)]
    changed = pipeline.logged_value_never_written(evidence, Random(seed))
    assert changed is not None and changed["value"] == pipeline.NEVER_WRITTEN
