"""Traces that are judged while they grow, and marks in the order of one clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from toy_quorum import Evidence, Quorum, Row, minority_commit, random_run

from checkers.base.columns import TRACE
from checkers.base.verdict import Validity
from checkers.online import CHECKER, OnlineFinding, OnlineMarks, OnlineTraces

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


# Online checks of marks


NODES = ("n1", "n2", "n3", "n4", "n5")


def table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, TRACE)


def read_in_pieces(rng: Random, traces: Mapping[str, list[Row]], pieces: int) -> list[OnlineFinding]:
    """As looks that come at any time: all that was written by then, less of a node where its answer came early."""
    online = OnlineMarks(tuple(traces))
    end_ns = max(row["time_ns"] for rows in traces.values() for row in rows)
    taken = dict.fromkeys(traces, 0)
    found: list[OnlineFinding] = []
    for number in range(pieces + 2):
        more = {}
        earlier_ns, until_ns = end_ns * number / pieces, end_ns * (number + 1) / pieces
        for node, rows in traces.items():
            if rng.random() < 0.2 and number < pieces:
                continue  # its agent does not answer
            answered_ns = rng.uniform(earlier_ns, until_ns)
            stop = sum(row["time_ns"] <= answered_ns for row in rows)
            more[node] = table(rows[taken[node] : max(stop, taken[node])])
            taken[node] = max(stop, taken[node])
        found += online.take(more)
    return found


def with_all(quorum: Quorum) -> Evidence:
    evidence = quorum.evidence()
    assert evidence.traces.keys() == set(NODES)
    return evidence


@pytest.mark.parametrize("seed", range(6))
def test_no_look_at_a_correct_run_raises_anything(seed: int) -> None:
    traces = random_run(seed).evidence().traces
    for pieces in (1, 7, 40):
        assert read_in_pieces(Random(seed), traces, pieces) == []


@pytest.mark.parametrize("pieces", [1, 5, 30])
def test_a_mark_of_a_minority_is_found_with_the_witness_of_the_sealed_run(pieces: int, tmp_path: Path) -> None:
    evidence = with_all(minority_commit(pieces)[0])
    sealed = evidence.judge(tmp_path, CHECKER)[CHECKER]
    assert sealed.validity is Validity.INVALID
    found = read_in_pieces(Random(pieces), evidence.traces, pieces)
    assert [finding.checker for finding in found] == [CHECKER]
    assert found[0].witness.facts["offset"] in {witness.facts["offset"] for witness in sealed.witnesses}


def test_a_mark_waits_until_every_voter_was_read_after_it() -> None:
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write(followers={"n2", "n3"})
    traces = quorum.evidence().traces
    online = OnlineMarks(NODES)
    assert online.take({"n1": table(traces["n1"])}) == []
    others = {node: table(traces[node]) for node in NODES[1:]}
    assert online.take(others) == [] and online.judged == 0, "n1 itself may have reported more"
    assert online.take({"n1": table([])}) == []
    assert online.judged > 0


def test_a_dead_voter_holds_up_what_is_certain_only_while_it_is_unread() -> None:
    traces = with_all(minority_commit(4)[0]).traces
    online = OnlineMarks(NODES)
    everything = {node: table(rows) for node, rows in traces.items()}
    silent = {node: table([]) for node in NODES if node != "n5"}
    assert online.take({node: rows for node, rows in everything.items() if node != "n5"}) == []
    assert online.take(silent) == []
    assert [finding.checker for finding in online.take({"n5": everything["n5"]})] == [CHECKER]
    assert online.take(silent | {"n5": table([])}) == []
