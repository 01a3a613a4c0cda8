"""Trace validation: clean traces are explained whole, and a row that changes what a trace claims is noticed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from recorded_runs import unpacked
from toy_quorum import Quorum, minority_commit, random_run, unfair_leader

from checkers.base.verdict import Validity
from checkers.raft import elections
from checkers.raft.rules import TraceRow
from checkers.raft.trace_validation import Replayed, replay
from system_under_test.kraft.node.snapshotting import SLICE_RECORDS, SPARSE_RECORDS

Traces = dict[str, list[TraceRow]]


def traces_of(quorum: Quorum) -> Traces:
    return {
        name: [TraceRow._make(row[field] for field in TraceRow._fields) for row in node.trace]
        for name, node in quorum.nodes.items()
    }


@cache
def recorded(name: str) -> Traces:
    with tempfile.TemporaryDirectory() as folder:
        files = sorted((unpacked(name, Path(folder)) / "trace").glob("*.jsonl"))
        return {file.stem: [_row(json.loads(line)) for line in file.read_text().splitlines()] for file in files}


def _row(line: dict) -> TraceRow:
    return TraceRow(*(line.get({"incarnation": "inc"}.get(field, field)) for field in TraceRow._fields))


def replayed(traces: Traces) -> Replayed:
    return replay({node: iter(rows) for node, rows in traces.items()}, dict.fromkeys(traces, 1 << 40))


def is_explained(traces: Traces) -> bool:
    found = replayed(traces)
    return not found.stops and not found.unknown and found.model.lost() is None


def numbered(rows: list[TraceRow]) -> list[TraceRow]:
    return [row._replace(seq=seq) for seq, row in enumerate(rows)]


@pytest.mark.parametrize("seed", range(40))
def test_a_run_that_is_correct_by_construction_is_explained(seed: int) -> None:
    traces = traces_of(random_run(seed, steps=2 * seed))
    found = replayed(traces)
    assert (found.stops, found.unknown, found.model.lost()) == ((), (), None)
    assert found.rows == sum(map(len, traces.values()))


@pytest.mark.parametrize("name", ["kraft-partition", "kraft-kill", "kraft-stale-read"])
def test_a_recorded_run_of_a_sound_quorum_is_explained(name: str) -> None:
    """Stale reads leave no mark in a trace."""
    found = replayed(recorded(name))
    assert (found.stops, found.unknown, found.model.lost()) == ((), (), None)
    assert found.rows > 500


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("kraft-minority-commit", "that a majority held everything below"),
        ("kraft-divergence-by-offset", "append to another log than the leader's"),
        ("kraft-lone-vote", "that a majority voted for it in epoch 2"),
    ],
)
def test_a_recorded_run_with_a_planted_bug_is_not(name: str, kind: str) -> None:
    stop = replayed(recorded(name)).stops[0]  # the lowest epoch comes first
    assert kind in str(stop.answer)


def test_the_order_in_which_nodes_are_replayed_changes_nothing() -> None:
    """Without a violation and with one."""
    for traces in (traces_of(random_run(5)), recorded("kraft-minority-commit")):
        answers = set()
        for seed in range(6):
            nodes = list(traces)
            Random(seed).shuffle(nodes)
            found = replayed({node: traces[node] for node in nodes})
            answers.add((bool(found.stops), found.rows if not found.stops else 0, found.model.lost()))
        assert len(answers) == 1


def test_a_mark_of_a_minority_and_a_leader_that_is_behind(tmp_path: Path) -> None:
    quorum, epoch, _ = minority_commit(3)
    verdict = quorum.evidence().judge(tmp_path / "mark", "trace-validation")["trace-validation"]
    facts = verdict.witnesses[0].facts
    assert (verdict.validity, facts["epoch"]) == (Validity.INVALID, epoch)
    missing = facts["expected"].removeprefix("a trace of another node shows ")
    assert missing.startswith("that a majority held everything below") and "only" not in missing
    assert f"No trace shows {missing}: only" in facts["why"][1]
    quorum, epoch = unfair_leader(4)
    verdict = quorum.evidence().judge(tmp_path / "vote", "trace-validation")["trace-validation"]
    assert verdict.validity is Validity.INVALID
    assert {w.kind for w in verdict.witnesses} == {"vote for a log that is behind"}
    assert verdict.witnesses[0].facts["epoch"] == epoch


def test_a_mark_at_the_start_of_its_epoch_is_figure_8() -> None:
    """n1 writes and is cut off; n2 leads, and calls n1's entry committed that it holds, before an entry of its own."""
    quorum = Quorum(size=3)
    quorum.elect("n1")
    quorum.replicate()
    quorum.write(replicate=False)
    quorum._fetch(quorum.nodes["n1"], quorum.nodes["n2"])
    quorum._fetch(quorum.nodes["n1"], quorum.nodes["n3"])
    quorum.elect("n2", {"n2", "n3"})
    traces = traces_of(quorum)
    assert is_explained(traces)
    quorum._commit(quorum.nodes["n2"], 2)
    [stop] = replayed(traces_of(quorum)).stops
    assert "mark without an entry of its epoch" in str(stop.answer)


def replay_interrupted(after: int) -> Traces:
    """n5 was cut off and applies what it missed; once `after` entries of it are applied, a row of a flush comes."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write()
    quorum.cut({"n5"})
    for _ in range(6):
        quorum.write()
    quorum.heal()
    traces = traces_of(quorum)
    rows = traces["n5"]
    first = max(i for i, row in enumerate(rows) if row.event == "high-watermark") + 1
    flush = next(row for row in reversed(rows) if row.event == "flush")
    traces["n5"] = numbered([*rows[: first + after], flush, *rows[first + after :]])
    return traces


def test_a_long_replay_leaves_room_for_other_rows_behind_each_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elections, "SLICE", 4)
    assert not is_explained(replay_interrupted(after=3))
    assert is_explained(replay_interrupted(after=4))
    monkeypatch.undo()
    assert not is_explained(replay_interrupted(after=4))
    assert is_explained(replay_interrupted(after=6))


def test_the_model_knows_the_slices_in_which_nodes_apply() -> None:
    assert (elections.SLICE, elections.REPORTED_EACH) == (SLICE_RECORDS, SPARSE_RECORDS)


def test_a_missing_trace_or_a_gap_is_unknown(tmp_path: Path) -> None:
    evidence = random_run(1).evidence()
    del evidence.traces["n3"]
    verdict = evidence.judge(tmp_path / "missing", "trace-validation")["trace-validation"]
    assert (verdict.validity, "n3 delivered no traces" in verdict.reason) == (Validity.UNKNOWN, True)
    evidence = random_run(1).evidence()
    del evidence.traces["n3"][40]
    verdict = evidence.judge(tmp_path / "gap", "trace-validation")["trace-validation"]
    assert verdict.validity is Validity.UNKNOWN
    assert "n3: the trace has seq 41 where seq 40 is expected" in verdict.reason


ROLES = ("unattached", "prospective", "candidate", "leader", "follower", "resigned")
OTHERS: dict[str, Callable[[Any, Random], Any]] = {
    "epoch": lambda epoch, random: max(0, epoch + random.choice([-1, 1, 1000])),
    "offset": lambda offset, random: max(0, offset + random.choice([-7, -1, 1, 5])),
    "hash": lambda value, random: value ^ 1,
    "peer": lambda peer, random: random.choice([other for other in ("n1", "n2", "n3") if other != peer]),
    "role": lambda role, random: random.choice([other for other in ROLES if other != role]),
    "incarnation": lambda life, random: life + 1,
}
"""Column of a row -> another value of it."""


def mutate(how: str, rows: list[TraceRow], i: int, random: Random) -> None:
    """Drop a row, double it, swap it with the next, or change one column of it."""
    if how == "dropped":
        del rows[i]
    elif how == "doubled":
        rows.insert(i, rows[i])
    elif how == "swapped":
        rows[i : i + 2] = reversed(rows[i : i + 2])
    elif (value := getattr(rows[i], how)) is not None:
        rows[i] = rows[i]._replace(**{how: OTHERS[how](value, random)})


CLAIMS_NOTHING_ELSE = {
    ("doubled", "applied"),
    ("doubled", "flush"),
    ("doubled", "high-watermark"),
    ("dropped", "flush"),  # the next flush reaches further
    ("offset", "flush"),  # an earlier flush: it claims less
    ("swapped", "flush"),  # rows that follow may come while the flush runs
    ("doubled", "vote"),  # a repeated vote claims nothing new
    ("dropped", "vote"),  # one of more votes than a majority needs
    ("dropped", "role"),  # a resignation, or the first row of a higher epoch: the next role may follow at once
    ("dropped", "stop"),
}
"""Mutations after which a trace may claim nothing that is wrong; all others must be noticed."""


def _last_word(rows: list[TraceRow], i: int) -> bool:
    """Whether nothing behind this row says more of its subject: a trace may end anywhere."""
    return all(later.event in ("applied", "stop") for later in rows[i + 1 :])


@pytest.mark.parametrize("how", ["dropped", "doubled", "swapped", *OTHERS])
@pytest.mark.parametrize("name", ["toy", "kraft-partition", "kraft-kill"])
def test_every_class_of_mutated_rows_is_noticed(name: str, how: str) -> None:
    traces = traces_of(random_run(3)) if name == "toy" else recorded(name)
    random = Random(f"{name} {how}")
    missed = []
    for event in sorted({row.event for rows in traces.values() for row in rows}):
        for _ in range(6):
            node, i = random.choice(
                [(n, i) for n, rows in traces.items() for i, r in enumerate(rows) if r.event == event]
            )
            rows = traces[node].copy()
            mutate(how, rows, i, random)
            rows = numbered(rows)
            if rows == traces[node] or _last_word(traces[node], i):
                continue
            if is_explained(traces | {node: rows}):
                missed.append((how, event, node, i))
    missed = [m for m in missed if m[:2] not in CLAIMS_NOTHING_ELSE]
    assert missed == []
