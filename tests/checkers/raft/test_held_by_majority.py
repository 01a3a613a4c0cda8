"""High watermarks held by a majority: who durably held what, by epoch; marks that too few held; and marks that a
majority came to hold only later, which clocks of one machine show and nothing else does."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from toy_quorum import Evidence, Quorum, Row, minority_commit
from trace_rows import followed, trace_rows

from checkers.base.checker import BeyondBudget, Budget
from checkers.base.verdict import Validity, Verdict
from checkers.catalog import CATALOG
from checkers.raft.monitor import Reach
from checkers.raft.trace_checkers import ROW_SIZE_BYTES, TimedMonitor

NAME = "high-watermark-majority"
IN_TIME = "majority-before-mark"
EPOCHS = 5

steps = st.lists(
    st.tuples(st.sampled_from(["append", "flush", "truncate", "crash", "epoch"]), st.integers(0, 3), st.booleans()),
    max_size=14,
)


Ends = set[tuple[int, int]]
"""(epoch, durable end) of a node at some moments."""


def lived(drawn: list[tuple[str, int, bool]], traces_all: bool) -> tuple[Reach, Ends, Ends, Ends]:
    """One node's life, entry by entry.

    Returns what its trace says; every (epoch, durable end) it was at; those at which the last entry was of the node's
    epoch; those at which the last durable entry was.  Without `traces_all`, an append before a crash is not traced:
    the kill came between the disk and the row.
    """
    log: list[int] = []
    own, durable = 0, 0
    rows = [("start", 0, 0)]
    at: Ends = {(0, 0)}
    at_own: Ends = set()
    at_durable: Ends = set()

    def look() -> None:
        at.add((own, durable))
        if log and log[-1] == own:
            at_own.add((own, durable))
        if durable and log[durable - 1] == own:
            at_durable.add((own, durable))

    for number, (what, size, flag) in enumerate(drawn):
        if what == "append" and size:
            epoch = own if flag or not log else log[-1]
            log += [epoch] * size
            follows = drawn[number + 1][0] if number + 1 < len(drawn) else ""
            if traces_all or follows != "crash":
                rows.append(("append", len(log), epoch))
        elif what == "flush":
            durable = len(log)
            rows.append(("flush", durable, own))
        elif what == "truncate":
            del log[max(0, len(log) - size) :]
            durable = min(durable, len(log))
            rows.append(("truncate", len(log), own))
        elif what == "crash":
            if flag:
                del log[durable:]
            durable = len(log)
            rows.append(("start", durable, own))
        elif what == "epoch" and own + 1 < EPOCHS:
            own += 1
            rows.append(("role", None, own))
        look()
    return reach_of(*rows), at, at_own, at_durable


def reach_of(*rows: tuple[str, int | None, int]) -> Reach:
    """rows: event, offset, epoch."""
    return followed([{"event": event, "offset": offset, "epoch": epoch} for event, offset, epoch in rows]).reach


@given(steps)
def test_what_a_trace_says_is_what_the_node_held(drawn: list[tuple[str, int, bool]]) -> None:
    reach, at, at_own, _ = lived(drawn, traces_all=True)
    for epoch in range(EPOCHS):
        for end in range(1, 30):
            held = any(e <= epoch and durable >= end for e, durable in at)
            held_own = any(e == epoch and durable >= end for e, durable in at_own)
            assert reach.may_have_held(end, epoch, beyond_start=False) == held
            assert reach.may_have_held(end, epoch, beyond_start=True) == held_own


@given(steps)
@example(
    drawn=[("append", 1, False), ("flush", 0, False), ("epoch", 0, False), ("append", 1, True), ("crash", 0, True)]
)
def test_an_append_without_a_row_counts_as_held(drawn: list[tuple[str, int, bool]]) -> None:
    """A mark beyond the start of its epoch covers an entry of that epoch, so only durable entries of it matter."""
    reach, at, _, at_durable = lived(drawn, traces_all=False)
    for epoch, end in at:
        assert end == 0 or reach.may_have_held(end, epoch, beyond_start=False)
    for epoch, end in at_durable:
        assert end == 0 or reach.may_have_held(end, epoch, beyond_start=True)


def test_a_trace_that_begins_in_the_middle_may_have_held_everything_before() -> None:
    began = reach_of(("start", 7, 3), ("flush", 7, 3))
    assert began.may_have_held(7, 2, beyond_start=True) and not began.may_have_held(8, 3, beyond_start=True)
    cut = reach_of(("flush", 7, 3))
    assert cut.may_have_held(99, 3, beyond_start=True) and not cut.may_have_held(99, 4, beyond_start=True)


@pytest.fixture
def evidence() -> Evidence:
    """n1 leads five nodes, and three of them hold its last mark."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write()
    quorum.write(followers={"n2", "n3"})
    return quorum.evidence()


def judged(evidence: Evidence, folder: Path, name: str = NAME) -> Verdict:
    return evidence.judge(folder, name)[name]


def flushes(evidence: Evidence, node: str) -> list[Row]:
    return [r for r in evidence.traces[node] if r["event"] == "flush"]


def later(evidence: Evidence, node: str) -> None:
    """The node flushed its last entry after its leader's mark; everything behind that happened later too."""
    flush = flushes(evidence, node)[-1]
    mark_ns = max(row["time_ns"] for row in evidence.traces["n1"])
    for row in evidence.traces[node]:
        if row["seq"] >= flush["seq"]:
            row["time_ns"] += mark_ns


@pytest.mark.parametrize("flushed", [True, False])
def test_three_of_five_are_a_majority_and_two_are_not(evidence: Evidence, tmp_path: Path, flushed: bool) -> None:
    """A follower that acknowledges before it has flushed shows this, though no power fails."""
    assert judged(evidence, tmp_path / "three").validity is Validity.VALID
    flush = flushes(evidence, "n3")[-1]
    if flushed:
        flush["offset"] -= 1
    else:
        evidence.traces["n3"].remove(flush)
    verdict = judged(evidence, tmp_path / "two")
    witness = verdict.witnesses[0]
    assert witness.kind == "high watermark without a majority"
    assert witness.facts["may_have_held"] == ["n1", "n2"] and witness.facts["committed_below"] == 3
    assert {"n3", "n4", "n5"} <= set(witness.facts["nodes"])
    assert witness.rows[0]["event"] == "high-watermark" and witness.rows[0]["offset"] == 3


@pytest.mark.parametrize("name", [NAME, IN_TIME])
@pytest.mark.parametrize("how", ["no trace", "the mark came after the last copy", "recovered by a restart"])
def test_what_is_not_known_counts_as_held(evidence: Evidence, tmp_path: Path, how: str, name: str) -> None:
    first, lagging = flushes(evidence, "n3")
    if name == NAME:
        lagging["offset"] -= 1
    else:
        later(evidence, "n3")
    if how == "no trace":
        del evidence.traces["n4"]
        verdict = judged(evidence, tmp_path, name)
        assert verdict.validity is Validity.UNKNOWN and "n4 delivered no traces" in verdict.reason
        return
    if how == "recovered by a restart":
        (lagging if name == NAME else first).update(event="start", offset=3, incarnation=1)
    else:
        for copy in evidence.copies:
            marks = [r["seq"] for r in evidence.traces[copy["node"]] if r["offset"] == 3 and r["hash"] is not None]
            copy["trace_seq"] = min(marks, default=copy["trace_seq"] + 1) - 1
    assert judged(evidence, tmp_path, name).validity is Validity.VALID


@pytest.mark.parametrize("name", [NAME, IN_TIME])
def test_a_longer_tail_of_an_older_epoch_does_not_hold_a_mark(tmp_path: Path, name: str) -> None:
    """n1 is cut off with a long tail; n2 leads with n3 alone and calls committed what lies below the end of n1's log
    and of n4's, who had that tail too: by length alone they would be four."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write()
    for _ in range(9):
        quorum.write(followers={"n4"})
    quorum.nodes["n4"].trace[:] = [r for r in quorum.nodes["n4"].trace if r["event"] != "high-watermark"]
    quorum.elect("n2", {"n2", "n3", "n5"})
    mark = quorum.commit_alone({"n3"})
    assert mark < len(quorum.nodes["n4"].log)
    witness = judged(quorum.evidence(), tmp_path, name).witnesses[0]
    assert witness.facts["epoch"] == 2 and witness.facts["may_have_held"] == ["n2", "n3"]


@pytest.mark.parametrize("seed", range(3))
def test_a_commit_by_a_minority_is_found(seed: int, tmp_path: Path) -> None:
    found_by_both(seed, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(30))
def test_every_commit_by_a_minority_is_found(part: int, night: Random, tmp_path: Path) -> None:
    first = night.randrange(2**31)
    for seed in range(first, first + 100):
        found_by_both(seed, tmp_path / str(seed))


def found_by_both(seed: int, folder: Path) -> None:
    """All checkers find it: by what the nodes flushed, also in time, and by the log of the next leader."""
    quorum, epoch, mark = minority_commit(seed)
    verdicts = quorum.evidence().judge(folder, NAME, IN_TIME, "leader-completeness", "committed-never-lost")
    assert {v.validity for v in verdicts.values()} == {Validity.INVALID}
    witnesses = [w.facts for w in verdicts[NAME].witnesses]
    assert witnesses[0]["epoch"] == epoch and {w["committed_below"] for w in witnesses} == {mark}
    assert verdicts["leader-completeness"].witnesses[0].facts["committed_below"] == mark


def test_a_mark_that_a_majority_held_only_later_is_found(evidence: Evidence, tmp_path: Path) -> None:
    for node in ("n4", "n5"):  # no matter while a majority is in time
        later(evidence, node)
    assert judged(evidence, tmp_path / "in time", IN_TIME).validity is Validity.VALID
    later(evidence, "n3")
    verdict = judged(evidence, tmp_path / "late", IN_TIME)
    [witness] = verdict.witnesses
    assert witness.kind == "high watermark before its majority"
    assert witness.facts["may_have_held"] == ["n1", "n2"] and witness.facts["committed_below"] == 3
    assert witness.rows[0]["event"] == "high-watermark" and witness.rows[0]["node"] == "n1"
    assert judged(evidence, tmp_path / "without clocks").validity is Validity.VALID


def test_servers_without_a_common_clock_are_not_compared(evidence: Evidence, tmp_path: Path) -> None:
    later(evidence, "n3")
    evidence.test["spec"]["backend"] = "ssh"
    assert judged(evidence, tmp_path, IN_TIME).validity is Validity.NOT_APPLICABLE


def test_what_a_restart_recovered_may_be_of_any_epoch() -> None:
    def early(mark: int, epoch: int) -> bool:
        """Whether a mark of a leader is wrong of which one other voter is known to hold this."""
        monitor = TimedMonitor(("n1", "n2", "n3"), ("n1", "n2", "n3"))
        other = [
            {"event": "append", "epoch": 2, "offset": 1},
            {"event": "flush", "epoch": 2, "offset": 1},
            {"event": "start", "epoch": 2, "offset": 3},
        ]
        leader = [
            {"event": "role", "role": "leader", "epoch": epoch, "offset": 0},
            {"event": "append", "epoch": epoch, "offset": 9},
            {"event": "flush", "epoch": epoch, "offset": 9},
            {"event": "high-watermark", "epoch": epoch, "offset": mark},
        ]
        return bool([found for row in trace_rows(other, "n2") + trace_rows(leader) for found in monitor.take(row)])

    assert [early(mark, 2) for mark in (1, 3, 4)] == [early(mark, 5) for mark in (1, 3, 4)] == [False, False, True]


def test_traces_beyond_the_budget_are_unknown(evidence: Evidence, tmp_path: Path) -> None:
    *_, part = CATALOG[IN_TIME].split(evidence.write(tmp_path))
    need = sum(map(len, evidence.traces.values())) * ROW_SIZE_BYTES
    CATALOG[IN_TIME].judge(part, Budget(size_bytes=need))
    with pytest.raises(BeyondBudget):
        CATALOG[IN_TIME].judge(part, Budget(size_bytes=need - 1))
