"""Online checks of traces: silent on every prefix of a correct run, in the end as strict as the sealed judgement."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from toy_quorum import Evidence, Quorum, Row, random_run

from checkers.base.columns import TRACE
from checkers.base.verdict import Validity
from checkers.online import OnlineFinding, OnlineTraces

OF_TRACES = ("election-safety", "vote-once", "monotonicity", "state-machine-safety")
"""Those of which one changed row is likely to be a violation."""
JUDGED = (*OF_TRACES, "commit-own-epoch")


def in_pieces(rng: Random, traces: dict[str, list[Row]], most: int) -> Iterator[list[pa.Table]]:
    """The rows of all nodes as they might be read: each time some more of some nodes, each node's in order."""
    left = {node: list(rows) for node, rows in traces.items()}
    while any(left.values()):
        piece = []
        for node, rows in left.items():
            count = rng.randint(0, most)
            piece.append(pa.Table.from_pylist(rows[:count], TRACE))
            left[node] = rows[count:]
        yield piece


def findings_of(rng: Random, traces: dict[str, list[Row]], most: int = 12) -> list[OnlineFinding]:
    online = OnlineTraces()
    found = [finding for piece in in_pieces(rng, traces, most) for finding in online.take(piece)]
    assert online.rows == sum(map(len, traces.values()))
    return found


def without_copies(evidence: Evidence) -> Evidence:
    """What copies of data directories say is not for the traces to know."""
    return Evidence(
        evidence.history, {}, evidence.traces, [], evidence.faults, evidence.outcome, evidence.test, evidence.demands
    )


@pytest.mark.parametrize("seed", range(5))
def test_no_prefix_of_a_correct_run_raises_anything(seed: int) -> None:
    traces = random_run(seed).evidence().traces
    assert findings_of(Random(seed), traces) == []
    assert findings_of(Random(seed), traces, most=1) == []


def falsified(rng: Random, traces: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """The same with one value of one row changed, or with one vote more."""
    changed = deepcopy(traces)
    if rng.random() < 0.2:
        votes = rng.choice([rows for rows in changed.values() if any(r["event"] == "vote" for r in rows)])
        vote = rng.choice([r for r in votes if r["event"] == "vote"])
        votes.append(vote | {"seq": len(votes), "peer": rng.choice([name for name in changed if name != vote["peer"]])})
        return changed
    reported = [r for rows in changed.values() for r in rows]
    row = rng.choice([r for r in reported if r["event"] == "role"] if rng.random() < 0.3 else reported)
    column = rng.choice([name for name in ("epoch", "offset", "hash", "peer", "role") if row[name] is not None])
    new: dict[str, Any] = {
        "epoch": rng.choice([row["epoch"] - 1, row["epoch"] + 1, row["epoch"] + 3]),
        "offset": rng.choice([max(0, (row["offset"] or 0) - 2), (row["offset"] or 0) + 3]),
        "hash": 12345,
        "peer": rng.choice([name for name in changed if name != row["peer"]]),
        "role": "leader",
    }
    row[column] = new[column]
    return changed


def same_as_sealed(seed: int, folder: Path) -> set[str]:
    """Judge one falsified run both ways; the checkers that found something, online and sealed alike."""
    rng = Random(seed)
    evidence = random_run(seed % 7).evidence()
    evidence.traces = falsified(rng, evidence.traces)
    findings = findings_of(rng, evidence.traces)
    sealed = without_copies(evidence).judge(folder / "traces", *JUDGED)
    invalid = {name for name, verdict in sealed.items() if verdict.validity is Validity.INVALID}
    assert {f.checker for f in findings} - {"committed-never-lost"} == invalid
    for finding in findings:
        whole = {"committed-never-lost"} if finding.checker == "committed-never-lost" else set()
        for name in whole:
            verdict = evidence.judge(folder / "all", name)[name]
            assert verdict.validity is Validity.INVALID
            return invalid | whole
        kinds = {w.kind for w in sealed[finding.checker].witnesses}
        assert finding.witness.kind in kinds
    return invalid


def test_a_falsified_row_is_found_by_the_checkers_that_find_it_in_the_sealed_run(tmp_path: Path) -> None:
    found = [same_as_sealed(seed, tmp_path / str(seed)) for seed in range(18)]
    assert {name for names in found for name in names} >= set(OF_TRACES)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_many_falsified_rows(part: int, night: Random, tmp_path: Path) -> None:
    first = night.randrange(2**31)
    for number in range(first, first + 100):
        same_as_sealed(number, tmp_path / str(number))


def test_a_finding_is_reported_once_and_names_the_checker_of_the_sealed_run() -> None:
    quorum = Quorum()
    quorum.elect("n1")
    for _ in range(5):
        quorum.write()
    traces = quorum.evidence().traces
    for row in traces["n3"]:
        if row["event"] == "applied":
            row["hash"] ^= 8
    findings = [finding.found_at(0) for finding in findings_of(Random(0), traces, most=2)]
    assert {finding.checker for finding in findings} == {"state-machine-safety"}
    assert all(finding.nodes is not None and "n3" in finding.nodes for finding in findings)
    assert len({finding.nodes for finding in findings}) == len(findings) >= 1


def test_a_truncation_below_a_mark_is_found_long_after_the_mark_was_read() -> None:
    quorum = Quorum()
    quorum.elect("n1")
    for _ in range(30):
        quorum.write()
    traces = quorum.evidence().traces
    row = dict(traces["n2"][-1]) | {"seq": len(traces["n2"]), "event": "truncate", "offset": 4, "hash": None}
    traces["n2"].append(row)
    kinds = {(f.checker, f.witness.kind) for f in findings_of(Random(1), traces, most=3)}
    assert ("committed-never-lost", "truncation below the high watermark") in kinds


def test_a_mark_over_older_entries_alone_is_found_when_it_is_read() -> None:
    """The role row and the marks before it were read long before."""
    quorum = Quorum()
    quorum.elect("n1")
    for _ in range(4):
        quorum.write()
    quorum.elect("n2", {"n2", "n3", "n4"})
    traces = {"n2": [row for row in quorum.evidence().traces["n2"] if row["event"] != "high-watermark"]}
    office = next(row for row in traces["n2"] if row["role"] == "leader")
    mark = office | {"event": "high-watermark", "role": None, "peer": None, "hash": None}
    traces["n2"] = [row for row in traces["n2"] if row["seq"] <= office["seq"]]
    traces["n2"] += [mark | {"seq": office["seq"] + 1, "offset": office["offset"]}]
    assert of_own_epoch(traces) == ["mark without an entry of its epoch"]
    known = office | {"event": "high-watermark", "role": None, "peer": None, "seq": office["seq"] - 1}
    traces["n2"].insert(-2, known)
    before = [row for row in traces["n2"] if row["seq"] < known["seq"]]
    assert of_own_epoch({"n2": [*before, *traces["n2"][-3:]]}) == [], "it repeats what it knew"


def of_own_epoch(traces: dict[str, list[Row]]) -> list[str]:
    found = findings_of(Random(2), traces, most=1)
    return [finding.witness.kind for finding in found if finding.checker == "commit-own-epoch"]
