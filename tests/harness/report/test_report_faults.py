"""Faults are shown by what their records hold: links, states, measurements; no kind is known by name."""

from __future__ import annotations

import dataclasses
import re
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from report_runs import build

from checkers.record.outcome import Coverage, Death
from harness.report import fault_views
from harness.report import fault_views as faults
from harness.report.environment import environment
from harness.report.fault_views import sides
from harness.report.render import _ended_by
from harness.report.run_data import ReportData, load
from tests.support.records_of_runs import fault_of

S = 1_000_000_000
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
def data(tmp_path_factory: pytest.TempPathFactory) -> ReportData:
    return load(build(tmp_path_factory.mktemp("runs") / "stale", "stale"))


def record(**more: Any) -> dict[str, Any]:
    card = {"number": 1, "kind": "flood", "name": "basement", "at_s": 1.0, "heal_s": 9.0}
    known = {"card": card, "kind": "flood", "achieved": "installed", "words": "water stands in the basement of n2"}
    return known | {"nodes": ["n2"], "cut": [], "injected_ns": 2 * S, "healed_ns": 9 * S, "apply_ms": 4.0} | more


def measurement(phase: str, to_ns: int, **more: Any) -> dict[str, Any]:
    return {"phase": phase, "from_ns": 0, "to_ns": to_ns} | more


def view(data: ReportData, **more: Any) -> faults.FaultView:
    (one,) = faults.views(dataclasses.replace(data, faults=[fault_of(record(**more))]))
    return one


def test_a_kind_of_fault_that_this_version_never_met_is_shown_by_its_record(data: ReportData) -> None:
    held = measurement("hold", 3 * S, values={"water_level_ms": 12.5}, states={"n2": "running"})
    measured = [held, measurement("heal", 9 * S, problems=["the pump did not answer"])]
    seen = view(data, measured=measured)
    assert (seen.kind, seen.words, seen.pairs_words) == ("flood", "water stands in the basement of n2", "n2")
    assert [(m.when, m.words, m.wrong) for m in seen.measured] == [
        ("hold", "n2 running; water level 12.5 ms", False),
        ("heal", "the pump did not answer", True),
    ]
    assert seen.sides == []


def test_a_link_that_another_fault_cuts_is_not_framed_as_wrong(data: ReportData) -> None:
    links = {"n1>n2": [150, 0], "n2>n1": [150, 150], "n1>n3": [150, 0], "n3>n1": [150, 0]}
    measured = [measurement("inject", 3 * S, links=links, also_cut=[["n1", "n2"]])]
    seen = view(data, cut=[["n1", "n3"]], measured=measured, inject_proof={"links": links, "verdict": "as ordered"})
    cells = {(c.source, c.target): c for _, row in seen.matrix for c in row if c}
    assert {pair for pair, cell in cells.items() if cell.wrong} == {("n3", "n1")}
    words = "n1 to n2: meant to be cut by another fault, 0 of 150 beacons arrived"
    assert f'class=" other" title="{words}">0</td>' in section(faults=[seen])
    assert seen.others == {("n1", "n2")}


def test_a_measurement_in_which_a_cut_link_let_beacons_through_is_wrong(data: ReportData) -> None:
    links = {"n1>n2": [150, 3], "n2>n1": [150, 0], "n1>n3": [150, 150]}
    measured = [measurement("hold", 3 * S, links=links), measurement("heal", 9 * S, links=links)]
    seen = view(data, cut=[["n1", "n2"], ["n2", "n1"]], measured=measured, lapsed_ns=3 * S)
    assert [(m.words, m.wrong) for m in seen.measured] == [
        ("n1 to n2 let beacons through", True),
        ("n2 to n1 was silent", True),
    ]
    assert "It lapsed at 3.000 s" in section(faults=[seen])
    aside = [{**measured[0], "unsettled": [["n1", "n2"]]}]
    assert not view(data, cut=[["n1", "n2"], ["n2", "n1"]], measured=aside).measured[0].wrong


def test_only_a_fault_whose_record_says_so_ended_a_process(data: ReportData) -> None:
    death = Death("n2", 2 * S - 3_000_000, ordered=True)
    dead = {"ordered": {"held": {"states": {"n2": "dead"}}}}
    assert _ended_by(data, death, [view(data, **dead)]) == "ended by fault 1 (flood basement)"
    assert _ended_by(data, death, [view(data)]) == "stopped by the harness", "this fault ended nothing"
    other = {"ordered": {"held": {"states": {"n3": "dead"}}}}
    assert _ended_by(data, death, [view(data, **other)]) == "stopped by the harness"
    late = dataclasses.replace(death, time_ns=data.end_ns + S)
    assert _ended_by(data, late, [view(data, **dead)]) == "stopped by the harness at the end of the run"
    assert _ended_by(data, dataclasses.replace(death, ordered=False), [view(data, **dead)]) == "ended by itself"


def test_an_old_record_that_was_measured_twice_only_is_read_as_well(data: ReportData) -> None:
    old = record(inject_proof={"verdict": "as ordered", "states": {"n2": "dead", "n1": "running"}})
    del old["kind"]
    (seen,) = faults.views(dataclasses.replace(data, faults=[fault_of(old)]))
    assert seen.held_states == {"n2": "dead"}
    assert seen.ended("n2", 3 * S) and not seen.ended("n1", 3 * S) and not seen.ended("n2", 10 * S)
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
