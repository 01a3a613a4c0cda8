"""Schedule files: read back as written, refused by card and field, and replayed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from dealt import deal
from fake_nemesis_cluster import FakeCluster, card, played
from virtual_time import run as in_no_time

from checkers.record.faults import Fault
from nemesis.deck import BadSchedule, as_executed, parse_schedule, schedule_json
from nemesis.kind import by_role
from nemesis.resolve import PlayOptions

SERVERS = ("n1", "n2", "n3", "n4", "n5")
ROW = {"number": 1, "kind": "partition", "name": "halves", "at_s": 2, "heal_s": 9}
STATED: Mapping[str, dict[str, Any]] = {
    "power": {"kept": "tear", "seed": 1, "at_fsync": 2},
    "disk": {"behaviour": "full", "rules": [{"operations": ["write"], "errno": "ENOSPC"}], "seed": 1},
    "damage": {"how": "flip", "seed": 1, "ended_by": "kill"},
    "packets": {"links": [["n1", "n2"]], "measured": [], "impairment": {"loss": 0.5}, "seed": 1},
    "membership": {"killed": True},
}
"""Kind -> settings that a fault of it must have."""


@pytest.mark.parametrize("nemesis", ["partition,kill", "pause", "past", "moment", "fsyncgate"])
def test_a_schedule_is_read_back_as_written(nemesis):
    cards = deal(nemesis, SERVERS, 120.0, Random(5))
    faults = {
        2: Fault(
            cards[1].kind, "words", ("n1",), frozenset({("n1", "n2")}), STATED.get(cards[1].kind, {"reject": True})
        )
    }
    again = parse_schedule(schedule_json(cards, faults))
    assert sorted(again.cards, key=lambda c: c.number) == cards
    assert again.faults == faults


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("[", "the schedule is not JSON"),
        ('{"schedule": 2, "cards": []}', "the field 'schedule' must be 1"),
        ('{"schedule": 1, "cards": [], "x": 1}', "unknown field 'x'"),
        ([7], "card 1: it is not a JSON object"),
        ([{k: v for k, v in ROW.items() if k != "at_s"}], "card 1: Object missing required field at_s"),
        ([ROW | {"at_s": True}], "card 1: its field 'at_s': Expected float, got bool"),
        ([ROW | {"at_s": -1}], "card 1: its field 'at_s' must be a number from 0, not -1"),
        ([ROW | {"heal_s": 1}], "card 1: its field 'heal_s' must be greater than 'at_s', not 1"),
        ([ROW, ROW], "card 2: its number 1 is that of another card"),
        ([ROW | {"like": 7}], "card 1: its field 'like' names card 7, which is not in the schedule"),
        ([ROW | {"after": 1}], "card 1: its fields 'after' and 'moment' go together: a number, and 'election' or 'new"),
        ([ROW | {"line_nth": 2}], "card 1: its fields 'line_nth' and 'line_of' need a 'line'"),
        ([ROW | {"line": "("}], "card 1: its field 'line' is no regular expression"),
        ([ROW | {"line": "x", "line_of": "n1"}], "card 1: its field 'line_of' must be 'leader' or 'follower'"),
        ([ROW, ROW | {"number": 2, "like": 1, "line": "x"}], "card 2: a card with a 'line' has neither 'like' nor"),
        ([ROW | {"kind": "past"}], "card 1: past deals cards of packets, pause and has none of its own"),
        ([ROW | {"kind": "flood"}], "card 1: there is no kind of fault 'flood'"),
        ([ROW | {"fault": {"node": []}}], "card 1: unknown field 'fault.node'"),
        ([ROW | {"fault": {"cut": [["n1"]]}}], "card 1: its field 'fault.cut[0]': Expected array of length 2, got 1"),
        ([ROW | {"fault": {"words": "x"}}], "card 1: its field 'fault' must name nodes or cut links"),
    ],
)
def test_a_broken_schedule_is_refused_by_card_and_field(data, says):
    with pytest.raises(BadSchedule, match=re.escape(says)):
        parse_schedule(data if isinstance(data, str) else json.dumps(data))


CLOCK_ROW = ROW | {"kind": "clock", "name": "one"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"offset_s": -1.9, "rate": 1.2},
            "offset_s must be 2 or more, or -2 or less, or rate must differ from 1 by 0.5",
        ),
        ({"offset_s": 30.0, "rate": "fast"}, "rate must be a number, not 'fast'"),
    ],
)
def test_a_clock_fault_that_nothing_could_prove_is_refused(settings, says):
    with pytest.raises(BadSchedule, match=re.escape("card 1: its field 'fault.settings': ") + ".*" + re.escape(says)):
        parse_schedule(json.dumps([CLOCK_ROW | {"fault": {"nodes": ["n1"], "settings": settings}}]))


@pytest.mark.parametrize(
    ("kind", "name", "wrong", "says"),
    [
        ("power", "one", {"kept": "nothing"}, "Invalid enum value 'nothing' - at $.kept"),
        ("disk", "all-slow", {"rules": 7}, "Expected array, got int - at $.rules"),
        ("packets", "one-lossy", {"links": [["n1"]]}, "Expected array of length 2, got 1 - at $.links[0]"),
    ],
)
def test_settings_that_a_fault_cannot_be_carried_out_with_are_refused(
    kind: str, name: str, wrong: Any, says: str
) -> None:
    row = ROW | {"kind": kind, "name": name}

    def read(settings: Mapping[str, Any]) -> None:
        parse_schedule(json.dumps([row | {"fault": {"nodes": ["n1"], "settings": settings}}]))

    read(STATED[kind])
    with pytest.raises(BadSchedule, match=re.escape(f"card 1: its field 'fault.settings': {says}")):
        read(STATED[kind] | wrong)
    with pytest.raises(BadSchedule, match="Object missing required field"):
        read({})


def test_a_run_is_replayed_on_the_same_nodes_and_links_although_another_one_leads():
    cluster = FakeCluster()
    cards = (card(), card("kill", "minority", 2, 20.0), card("pause", "leader", 3, 40.0, 2.5))
    first, _ = in_no_time(played(cluster, *cards))
    schedule = parse_schedule(as_executed(first, 0))
    cluster = FakeCluster(leader="n5")
    options = PlayOptions(schedule.faults, as_executed=True)
    again, _ = in_no_time(played(cluster, *schedule.cards, seed=99, options=options))
    assert [(r.cut, r.nodes, r.words, r.achieved) for r in again] == [
        (r.cut, r.nodes, r.words, r.achieved) for r in first
    ]
    assert [r.injected_ns for r in again] == pytest.approx([r.injected_ns for r in first], abs=5e6)
    assert [r.heal_ordered_ns for r in again] == pytest.approx([r.heal_ordered_ns for r in first], abs=5e6)


def test_a_run_is_replayed_on_the_same_roles():
    """n1 led then, and n5 leads now: they change places, and all others keep their names."""
    cards = (
        card(),
        card("kill", "minority", 2, 20.0),
        card("pause", "leader", 3, 40.0, 2.5),
        card("kill", "all", 4, 50),
    )
    first, _ = in_no_time(played(FakeCluster(), *cards))
    schedule = parse_schedule(as_executed(first, 0))
    cluster = FakeCluster(leader="n5")
    again, _ = in_no_time(played(cluster, *schedule.cards, seed=99, options=PlayOptions(schedule.faults)))
    names = {"n1": "n5", "n5": "n1"}
    assert [r.leader for r in first] == ["n1"] * 4
    assert [(r.leader, r.achieved) for r in again] == [("n5", r.achieved) for r in first]
    for then, now in zip(first, again, strict=True):
        assert set(now.nodes) == {names.get(node, node) for node in then.nodes}
        assert set(now.cut) == {(names.get(a, a), names.get(b, b)) for a, b in then.cut}
    assert again[2].words == first[2].words.replace("n1", "n5") == "leader n5 paused"
    assert again[1].nodes != first[1].nodes or not {"n1", "n5"} & set(first[1].nodes)


def test_a_fault_of_the_leader_is_skipped_with_its_reason_where_no_node_leads():
    (record,), _ = in_no_time(played(FakeCluster(), card("pause", "leader", 1, 2.0, 2.5)))
    cluster = FakeCluster(leader=None)
    options = PlayOptions({1: record.fault}, holds=2.0)
    (again,), _ = in_no_time(played(cluster, record.card, options=options))
    assert (again.achieved, again.nodes) == ("skipped", ())
    assert again.reason == "no node led within 10 s, and its fault hit the leader, which was n1"


def test_a_card_that_repeats_another_one_is_saved_as_such_and_hits_what_that_one_hits():
    cards = (card("kill", "one", 1, 2.0, 1.0), card("kill", "one", 2, 10.0, 1.0, like=1))
    first, _ = in_no_time(played(FakeCluster(), *cards))
    schedule = parse_schedule(as_executed(first, 0))
    assert [c.like for c in schedule.cards] == [0, 1]
    cluster = FakeCluster()
    cluster.leader = first[0].nodes[0] if first[0].nodes[0] != "n1" else "n2"
    again, _ = in_no_time(played(cluster, *schedule.cards, options=PlayOptions(schedule.faults)))
    assert again[0].nodes == again[1].nodes != first[0].nodes


def test_settings_and_links_that_name_nodes_follow_the_roles_and_a_missing_node_is_replaced():
    late = {"late": {"n5>n1": [["n5", "c1"]]}}
    fault = Fault("packets", "leader n5 late", ("n5",), frozenset({("n5", "c1")}), late, "n5")
    now = by_role(fault, "n1", ("n1", "n2", "n3"))
    assert (now.words, now.nodes, now.cut) == ("leader n1 late", ("n1",), {("n1", "c1")})
    assert now.settings == {"late": {"n1>n2": [["n1", "c1"]]}}
    assert by_role(fault, None, ("n1",)).nodes == ("n5",)
