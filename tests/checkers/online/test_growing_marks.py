"""Online checks of marks: as strict as the sealed judgement, silent while a row that excuses a mark may be unread."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from toy_quorum import Evidence, Quorum, Row, minority_commit, random_run

from checkers.base.columns import TRACE
from checkers.base.verdict import Validity
from checkers.online import CHECKER, OnlineFinding, OnlineMarks

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
