"""Roles, deposed leaders and high watermarks, from traces and, where there are none, from what the harness saw."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from journals import recorded, write_journal
from report_runs import build

from checkers.record.journal import JOURNAL
from harness.report import fault_views as faults
from harness.report import roles, timeline_view
from harness.report.roles import belief, circumstances
from harness.report.run_data import ReportData, load

NS = 1_000_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("runs") / "stale", "stale")


def of(data: ReportData, node: str) -> list[roles.RoleSegment]:
    return [s for s in roles.segments(data) if s.node == node]


def test_the_roles_of_a_node_fill_its_time_without_overlap(folder: Path) -> None:
    data = load(folder)
    for node in data.servers:
        mine = of(data, node)
        assert mine[-1].end_ns == data.end_ns
        assert all(a.end_ns == b.start_ns for a, b in itertools.pairwise(mine))


def test_a_leader_is_deposed_from_its_successors_election_to_its_own_end(folder: Path) -> None:
    data = load(folder)
    found = roles.deposed(data, roles.segments(data))
    led = roles.leaders(roles.segments(data))
    assert [d.epoch for d in found] == [1, 2]
    assert found[0].start_ns == led[1].start_ns and found[0].end_ns == led[0].end_ns
    assert found[0].reads == 1, "the one stale read of this run"


def test_what_happened_to_the_node_is_stated_without_guessed_causes(folder: Path) -> None:
    data = load(folder)
    all_roles, all_faults = roles.segments(data), faults.views(data)
    old = roles.deposed(data, all_roles)[0]
    words = belief(old.node, old.start_ns + 100_000_000, all_roles)
    assert words.startswith(f"{old.node} still believed it led epoch 1, 100 ms after ")
    assert belief("n9", data.end_ns, all_roles) == belief(old.node, old.start_ns - 100_000_000, all_roles) == ""
    words = circumstances(old.start_ns + 100_000_000, all_faults, all_roles)
    assert f"fault 1 ({all_faults[0].words}) had been in force" in words
    assert f"{old.node} led epoch 1 (deposed)" in words
    words = circumstances(max(f.end_ns for f in all_faults) + 100_000_000, all_faults, all_roles)
    assert " had been healed 100 ms before" in words, words


def test_an_epoch_that_nobody_was_seen_to_lead_is_named(folder: Path) -> None:
    data = load(folder)
    led = roles.segments(data)
    assert roles.epochs_without_leader(led) == [] == roles.epochs_without_leader([])
    later = [replace(s, epoch=s.epoch + 2) if s.epoch == 3 else s for s in led]
    assert roles.epochs_without_leader(later) == [3, 4]
    time_stamps = [replace(s, epoch=s.epoch + 10**12 * place) for place, s in enumerate(led)]
    assert len(led) > 1 and roles.epochs_without_leader(time_stamps) == [], "an epoch that counts no elections"
    drawn = [timeline_view.view(each, [], later, [], []) for each in (data, replace(data, traces={}))]
    named = "epochs 3 and 4"
    assert [view.words for view in drawn] == [
        [f"No trace shows that a node won the election of {named}."],
        [f"No node was seen to lead {named}: nobody won, or the leader was gone before nodes were asked again."],
    ]


def without_traces(folder: Path, into: Path, **outcome: object) -> ReportData:
    shutil.copytree(folder, into)
    shutil.rmtree(into / "tables")
    write_journal(into, outcome=recorded(into, "outcome") | outcome)
    return load(into)


def test_without_traces_and_reports_only_the_leaders_that_were_seen_have_a_role(folder: Path, tmp_path: Path) -> None:
    data = without_traces(folder, tmp_path / "run")
    led = roles.leaders(roles.segments(data))
    assert [s.epoch for s in led] == [1, 2, 3]
    assert {s.role for s in roles.segments(data)} == {"leader", roles.UNKNOWN}, "nobody was seen to follow"
    assert roles.watermarks(data).of == {}


def test_a_node_that_could_not_be_asked_has_no_role_but_what_it_answered(folder: Path, tmp_path: Path) -> None:
    """n1 leads and is cut off; its status cannot be asked from 5 to 12 s, and n3 leads meanwhile."""

    def report(node: str, from_s: float, to_s: float, epoch: int, role: str) -> dict[str, object]:
        return {"time_ns": int(from_s * NS), "until_ns": int(to_s * NS), "looks": 9, "node": node, "epoch": epoch,
                "role": role, "leader": None}  # fmt: skip

    reports = [report("n1", 1, 5, 1, "leader"), report("n3", 1, 6, 1, "follower"), report("n3", 6.2, 29, 2, "leader"),
               report("n1", 12, 29, 2, "follower")]  # fmt: skip
    data = without_traces(folder, tmp_path / "run", reports=reports)
    mine = of(data, "n1")
    silent = next(s for s in mine if s.start_ns == 5 * NS)
    assert (silent.role, silent.end_ns, silent.epoch) == (roles.UNKNOWN, 12 * NS, -1)
    ops = data.operations
    answered = (ops.node == ops.nodes.index("n1")) & (ops.type == 1) & (ops.end_ns >= 5 * NS) & (ops.end_ns < 12 * NS)
    assert answered.sum() > 0
    known = "its last report, leader of epoch 1, is of 5.000 s; it answered"
    assert silent.known == f"{known} {answered.sum():,} operations of clients meanwhile"
    assert next((s.role, s.end_ns) for s in of(data, "n3") if s.role != roles.UNKNOWN) == ("follower", int(6.2 * NS))
    assert not [s for s in mine if s.role == "follower" and s.start_ns < 12 * NS], (
        "no follower of an epoch it never saw"
    )


def test_a_killed_node_is_down_until_it_starts_again(tmp_path: Path) -> None:
    data = load(build(tmp_path / "kill", "kill"))
    fault = data.faults[1]
    down = [s for s in of(data, "n2") if s.role == roles.DEAD]
    assert [(s.start_ns, s.end_ns) for s in down] == [(fault.injected_ns, fault.healed_ns + NS // 10)]
    died = [s for s in of(data, "n5") if s.role == roles.DEAD]
    assert died[-1].end_ns == data.end_ns


def test_high_watermarks_are_unknown_until_learnt(folder: Path) -> None:
    marks = roles.watermarks(load(folder))
    assert set(marks.of) == {"n1", "n2", "n3", "n4", "n5"}
    for series in marks.of.values():
        assert series[0] == -1
        known = series[series >= 0]
        assert (known[1:] >= known[:-1]).all()


def test_without_an_outcome_that_can_be_read_the_traces_are_shown(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / JOURNAL).write_text("[1, 2]\n")
    data = load(tmp_path / "run")
    assert roles.segments(data) and data.end_ns > 0
