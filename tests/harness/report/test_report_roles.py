"""Roles, deposed leaders and high watermarks, by traces or what the harness saw; faults, by what their records hold."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from journals import recorded, write_journal
from report_runs import build

from checkers.record.header_and_outcome import Coverage, Death
from checkers.record.run_record import JOURNAL
from harness.report import fault_views, roles, timeline_view
from harness.report import fault_views as faults
from harness.report.environment import environment
from harness.report.fault_views import sides
from harness.report.render import _ended_by
from harness.report.roles import belief, circumstances
from harness.report.run_data import ReportData, load
from tests.support.records_of_runs import fault_of

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


SERVERS = ("n1", "n2", "n3", "n4", "n5")
EVERYBODY = (*SERVERS, "c1", "c2")


def apart(*groups: tuple[str, ...]) -> frozenset[tuple[str, str]]:
    """The links between nodes that share no group."""
    everybody = {n for group in groups for n in group}
    return frozenset((a, b) for a, b in permutations(everybody, 2) if not any(a in g and b in g for g in groups))


def section(**shown: Any) -> str:
    """What the page says about faults."""
    nothing = dict.fromkeys(("faults", "coverage", "attributed", "deposed"), ())
    page = environment().from_string('{% import "macros.html.j2" as m %}{% include "faults.html.j2" %}')
    return page.render({"faults_words": "", **nothing, **shown})


TWO = [
    "n3, n4, n5 and c2 could reach a majority: 3 of 5 servers together.",
    "n1, n2 and c1 could not: 2 of 5 servers together.",
]
BRIDGED = ["n1, n2, n3, n4, n5, c1 and c2 could reach a majority: 5 of 5 servers together."]
CLIENT_BETWEEN = [
    "n2, n3 and c1 could not: no server talked to more than 1 of 3, itself included.",
    "n1 and c2 could not: 1 of 3 servers together.",
]


@pytest.mark.parametrize(
    ("servers", "cut", "words"),
    [
        (SERVERS, apart(("n1", "n2", "c1"), ("n3", "n4", "n5", "c2")), TWO),
        (SERVERS, apart(("n1", "n2", "n3", "c1"), ("n3", "n4", "n5", "c2")), BRIDGED),
        (SERVERS[:3], apart(("n1", "c2"), ("n2", "c1"), ("n3", "c1")), CLIENT_BETWEEN),
        (SERVERS, frozenset((n, "n1") for n in EVERYBODY if n != "n1"), ["n1 could not: 1 of 5 servers together."]),
    ],
    ids=["two sides", "a bridge", "a client between", "deaf"],
)
def test_each_side_of_a_partition_says_who_could_reach_a_majority(servers: Any, cut: Any, words: list[str]) -> None:
    """A bridge joins two sides; a client joins no servers; a link that is open one way only is no conversation."""
    found = [side.words(len(servers)) for side in sides(servers, (*servers, "c1", "c2"), cut)]
    assert found[-len(words) :] == words


def test_servers_do_not_forward_so_a_chain_is_no_majority() -> None:
    neighbours = [("n1", "n2"), ("n2", "n3"), ("n3", "n4"), ("n4", "n5")]
    (chain, *clients) = sides(SERVERS, EVERYBODY, apart(*neighbours, ("c1",), ("c2",)))
    assert chain.servers == 5
    assert chain.reach == ("n2", "n3", "n4"), "each of these talks to both neighbours"
    assert chain.cut_off == ("n1", "n5")
    assert [side.cut_off for side in clients] == [("c1",), ("c2",)]


@pytest.fixture(scope="module")
def data(folder: Path) -> ReportData:
    return load(folder)


def record(**more: Any) -> dict[str, Any]:
    card = {"number": 1, "kind": "flood", "name": "basement", "at_s": 1.0, "heal_s": 9.0}
    known = {"card": card, "kind": "flood", "achieved": "installed", "words": "water stands in the basement of n2"}
    return known | {"nodes": ["n2"], "cut": [], "injected_ns": 2 * NS, "healed_ns": 9 * NS, "apply_ms": 4.0} | more


def measurement(phase: str, to_ns: int, **more: Any) -> dict[str, Any]:
    return {"phase": phase, "from_ns": 0, "to_ns": to_ns} | more


def view(data: ReportData, **more: Any) -> faults.FaultView:
    (one,) = faults.views(dataclasses.replace(data, faults=[fault_of(record(**more))]))
    return one


def test_a_kind_of_fault_that_this_version_never_met_is_shown_by_its_record(data: ReportData) -> None:
    held = measurement("hold", 3 * NS, values={"water_level_ms": 12.5}, states={"n2": "running"})
    measured = [held, measurement("heal", 9 * NS, problems=["the pump did not answer"])]
    seen = view(data, measured=measured)
    assert (seen.kind, seen.words, seen.pairs_words) == ("flood", "water stands in the basement of n2", "n2")
    assert [(m.when, m.words, m.wrong) for m in seen.measured] == [
        ("hold", "n2 running; water level 12.5 ms", False),
        ("heal", "the pump did not answer", True),
    ]
    assert seen.sides == []


def test_a_link_that_another_fault_cuts_is_not_framed_as_wrong(data: ReportData) -> None:
    links = {"n1>n2": [150, 0], "n2>n1": [150, 150], "n1>n3": [150, 0], "n3>n1": [150, 0]}
    measured = [measurement("inject", 3 * NS, links=links, also_cut=[["n1", "n2"]])]
    seen = view(data, cut=[["n1", "n3"]], measured=measured, inject_proof={"links": links, "verdict": "as ordered"})
    cells = {(c.source, c.target): c for _, row in seen.matrix for c in row if c}
    assert {pair for pair, cell in cells.items() if cell.wrong} == {("n3", "n1")}
    words = "n1 to n2: meant to be cut by another fault, 0 of 150 beacons arrived"
    assert f'class=" other" title="{words}">0</td>' in section(faults=[seen])
    assert seen.others == {("n1", "n2")}


def test_a_measurement_in_which_a_cut_link_let_beacons_through_is_wrong(data: ReportData) -> None:
    links = {"n1>n2": [150, 3], "n2>n1": [150, 0], "n1>n3": [150, 150]}
    measured = [measurement("hold", 3 * NS, links=links), measurement("heal", 9 * NS, links=links)]
    seen = view(data, cut=[["n1", "n2"], ["n2", "n1"]], measured=measured, lapsed_ns=3 * NS)
    assert [(m.words, m.wrong) for m in seen.measured] == [
        ("n1 to n2 let beacons through", True),
        ("n2 to n1 was silent", True),
    ]
    assert "It lapsed at 3.000 s" in section(faults=[seen])
    aside = [{**measured[0], "unsettled": [["n1", "n2"]]}]
    assert not view(data, cut=[["n1", "n2"], ["n2", "n1"]], measured=aside).measured[0].wrong


def test_only_a_fault_whose_record_says_so_ended_a_process(data: ReportData) -> None:
    death = Death("n2", 2 * NS - 3_000_000, ordered=True)
    dead = {"ordered": {"held": {"states": {"n2": "dead"}}}}
    assert _ended_by(data, death, [view(data, **dead)]) == "ended by fault 1 (flood basement)"
    assert _ended_by(data, death, [view(data)]) == "stopped by the harness", "this fault ended nothing"
    other = {"ordered": {"held": {"states": {"n3": "dead"}}}}
    assert _ended_by(data, death, [view(data, **other)]) == "stopped by the harness"
    late = dataclasses.replace(death, time_ns=data.end_ns + NS)
    assert _ended_by(data, late, [view(data, **dead)]) == "stopped by the harness at the end of the run"
    assert _ended_by(data, dataclasses.replace(death, ordered=False), [view(data, **dead)]) == "ended by itself"


def test_an_old_record_that_was_measured_twice_only_is_read_as_well(data: ReportData) -> None:
    old = record(inject_proof={"verdict": "as ordered", "states": {"n2": "dead", "n1": "running"}})
    del old["kind"]
    (seen,) = faults.views(dataclasses.replace(data, faults=[fault_of(old)]))
    assert seen.held_states == {"n2": "dead"}
    assert seen.ended("n2", 3 * NS) and not seen.ended("n1", 3 * NS) and not seen.ended("n2", 10 * NS)
    assert seen.measured == []


def test_the_table_of_what_faults_met_says_what_they_never_met(data: ReportData) -> None:
    cells = (("kill", "leader", "no node leads", 7), ("kill", "follower", "a node leads", 3))
    coverage = Coverage(cells, {"two terms": 0, "one": 4, "votes": None})
    outcome = dataclasses.replace(data.outcome, coverage=coverage)
    shown = fault_views.coverage_of(dataclasses.replace(data, outcome=outcome))
    assert shown is not None
    assert shown.rows == [
        ("kill", "leader", (0, 7, 0)),
        ("kill", "follower", (3, 0, 0)),
        ("kill", "without a leader", (0, 0, 0)),
    ]
    assert shown.summary == "2 of 9 combinations were met."
    text = re.sub("<[^>]*>", "", section(coverage=shown))
    assert "two terms: never" in text and "one: met" in text and "votes: not reported by this system" in text


@pytest.mark.parametrize("kept", [None, Coverage()])
def test_a_run_without_such_a_table_shows_none(data: ReportData, kept: Coverage | None) -> None:
    outcome = dataclasses.replace(data.outcome, coverage=kept)
    assert fault_views.coverage_of(dataclasses.replace(data, outcome=outcome)) is None


def test_no_line_of_the_report_branches_on_a_kind() -> None:
    source = Path(faults.__file__).parent
    kinds = ("partition", "pause", "'kill", '"kill', "packets", "power-loss")
    lines = [line for path in source.rglob("*.py") for line in path.read_text().splitlines() if "==" in line]
    assert [line for line in lines if any(kind in line for kind in kinds)] == []
