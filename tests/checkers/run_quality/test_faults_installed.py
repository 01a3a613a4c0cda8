"""Whether a fault was achieved follows from its measurements, not from what its record claims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from records_of_runs import fault_of

from checkers.record.faults import Achieved
from checkers.record.files import BrokenFile
from checkers.run_quality import faults_installed
from checkers.run_quality.faults_installed import (
    GAP_S_MAX,
    INDETERMINATE,
    INSTALLED,
    NOT_ACHIEVED,
    SENT_MIN,
    SKIPPED,
    Achievement,
)

S = 1_000_000_000


def achieved(raw: dict[str, Any]) -> Achievement:
    return faults_installed.achieved(fault_of(raw))


def links(sent: int = 60, cut_received: int = 0) -> dict[str, list[int]]:
    return {"a>b": [sent, cut_received], "b>a": [sent, sent]}


def measurement(phase: str, to_s: float, **more: Any) -> dict[str, Any]:
    return {"phase": phase, "from_ns": int((to_s - 0.5) * S), "to_ns": int(to_s * S), **more}


def partition() -> dict[str, Any]:
    """a>b cut from second 10 to second 16."""
    held = [measurement("hold", 10 + t, links=links()) for t in range(1, 6)]
    return {
        "card": {"kind": "partition"},
        "achieved": "installed",
        "reason": "",
        "cut": [["a", "b"]],
        "nodes": [],
        "ordered": {},
        "injected_ns": 10 * S,
        "heal_ordered_ns": 16 * S,
        "measured": [
            measurement("inject", 10.4, links=links()),
            *held,
            measurement("before heal", 16, links=links(10)),
            measurement("heal", 16.5, links=links(60, 60)),
        ],
    }


def skewed() -> dict[str, Any]:
    """A kind of fault that exists only here: a number that must lie within limits."""
    ahead = {"clock of n1, s ahead": 2.0}
    return partition() | {
        "card": {"kind": "clock"},
        "cut": [],
        "nodes": ["n1"],
        "ordered": {
            "held": {"values": {"clock of n1, s ahead": [1.9, 2.1]}},
            "healed": {"values": {"clock of n1, s ahead": [-0.1, 0.1]}},
        },
        "measured": [measurement("hold", 10 + t, values=ahead) for t in range(6)]
        + [measurement("before heal", 16, values=ahead), measurement("heal", 17, values={"clock of n1, s ahead": 0.0})],
    }


@pytest.mark.parametrize("word", ["installed", "not achieved", "indeterminate", "skipped"])
def test_the_recorded_word_of_a_fault_that_was_carried_out_counts_for_nothing(word: Any) -> None:
    assert achieved(partition() | {"achieved": word}).word == INSTALLED
    leaky = partition() | {"achieved": word}
    leaky["measured"][3]["links"] = links(60, 1)
    assert achieved(leaky).word == NOT_ACHIEVED


def test_a_link_that_another_fault_frees_just_before_the_heal_need_not_be_proven_open() -> None:
    freed = partition()
    for earlier in freed["measured"][:-2]:
        earlier["also_cut"] = [["b", "a"]]
        earlier["links"] = links() | {"b>a": [60, 0]}
    freed["measured"][-2] = measurement("before heal", 16, links=links(10) | {"b>a": [0, 0]})
    assert achieved(freed).word == INSTALLED

    for earlier in freed["measured"][2:-2]:
        del earlier["also_cut"]
        earlier["links"]["b>a"] = [0, 0]
    assert achieved(freed).word == INDETERMINATE, "it was free for four seconds, and nothing shows it"


@pytest.mark.parametrize("first_s", [10.4, 10.6])
def test_a_link_that_was_free_from_the_beginning_must_be_proven_open_however_short_the_fault(first_s: float) -> None:
    """The first measurement begins before the order was carried out, or 0.1 s after that."""
    short = partition()
    short["measured"] = [measurement("inject", first_s, links=links() | {"b>a": [0, 0]})]
    short["measured"] += [measurement("before heal", 10.9, links=links() | {"b>a": [0, 0]})]
    short["measured"] += [measurement("heal", 11.4, links=links(60, 60))]
    assert achieved(short | {"heal_ordered_ns": 11 * S}).word == INDETERMINATE


def test_a_lapse_is_dated() -> None:
    leaky = partition()
    leaky["measured"][3]["links"] = links(60, 7)
    found = achieved(leaky)
    assert found.reason == "it lapsed within 3.0 s: a>b ordered cut: 7 of 60 beacons arrived"
    assert found.lapsed_ns == 13 * S


def test_a_leak_right_after_inject_is_no_lapse() -> None:
    leaky = partition()
    leaky["measured"][0]["links"] = links(60, 60)
    assert achieved(leaky).reason == "after inject: a>b ordered cut: 60 of 60 beacons arrived"
    assert achieved(leaky).lapsed_ns == -1


@pytest.mark.parametrize("missing", [slice(0, 7), slice(2, 6), slice(6, 7), slice(7, 8), slice(0, 8)])
def test_a_stretch_without_a_measurement_leaves_it_indeterminate(missing: slice) -> None:
    record = partition()
    del record["measured"][missing]
    assert achieved(record).word == INDETERMINATE, achieved(record)


def test_few_beacons_in_each_window_add_up_and_too_few_of_them_do_not() -> None:
    record = partition()
    for each in record["measured"][1:7]:
        each["links"] = links(26)
    assert achieved(record).word == INSTALLED
    for each in record["measured"][1:7]:
        each["links"] = links(5)
    assert achieved(record).word == INDETERMINATE
    assert f"not proven in the last {16 - 10.4:.1f} s before heal" in achieved(record).reason
    assert GAP_S_MAX < 16 - 10.4


@pytest.mark.parametrize(("sent", "word"), [(SENT_MIN - 1, INDETERMINATE), (SENT_MIN, INSTALLED)])
def test_beacons_that_proved_a_cut_do_not_count_towards_its_next_proof(sent: int, word: Achieved) -> None:
    record = partition()
    record["measured"][1:7] = [
        measurement("hold", 13, links=links(sent)),
        measurement("before heal", 16, links=links(0)),
    ]
    assert achieved(record).word == word, achieved(record)


@pytest.mark.parametrize(("sent", "word"), [(SENT_MIN - 1, INSTALLED), (SENT_MIN, NOT_ACHIEVED)])
def test_silence_before_an_arrival_does_not_count_towards_the_next_silence(sent: int, word: Achieved) -> None:
    record = partition()
    record["measured"][2]["links"]["b>a"] = [SENT_MIN - 1, 0]
    record["measured"][3]["links"]["b>a"] = [60, 1]
    record["measured"][4]["links"]["b>a"] = [sent, 0]
    assert achieved(record).word == word, achieved(record)


def test_a_link_that_stays_silent_although_it_should_be_open_is_contrary() -> None:
    record = partition()
    record["measured"][4]["links"] = {"a>b": [60, 0], "b>a": [60, 0]}
    assert "b>a ordered open: none of 60 beacons arrived" in achieved(record).reason
    record["measured"][4]["also_cut"] = [["b", "a"]]
    assert achieved(record).word == INSTALLED, "another fault cuts it"
    del record["measured"][4]["also_cut"]
    record["measured"][4]["unsettled"] = [["b", "a"]]
    assert achieved(record).word == INSTALLED, "its order changed in that very window"
    record["measured"][4]["unsettled"] = [["b", "a"], ["a", "b"]]
    record["measured"][4]["links"] = links(60, 60)
    assert achieved(record).word == NOT_ACHIEVED, "a fault's own links are judged at all times"


def test_numbers_are_held_within_their_limits_without_knowing_the_kind() -> None:
    assert achieved(skewed()).word == INSTALLED
    for place, value, word in ((3, 1.5, NOT_ACHIEVED), (7, 2.0, NOT_ACHIEVED), (3, float("nan"), NOT_ACHIEVED)):
        record = skewed()
        record["measured"][place]["values"] = {"clock of n1, s ahead": value}
        assert achieved(record).word == word, value


@pytest.mark.parametrize(("late_ms", "word"), [(3_100.0, INSTALLED), (500.0, INDETERMINATE)])
def test_a_delay_is_proven_as_much_later_as_it_is_long(late_ms: float, word: Achieved) -> None:
    record, name = skewed(), "n1>n2: least delay ms"
    record["ordered"] = {"held": {"values": {name: [late_ms * 0.95, 60_000]}}, "healed": {"values": {name: [0, 50]}}}
    seen = {name: 3_200.0}
    record["measured"] = [measurement(p, t, values=seen) for p, t in (("inject", 13.4), ("before heal", 16.9))]
    record["measured"].append(measurement("heal", 17.5, values={name: 1.0}))
    assert achieved(record).word == word, achieved(record)


def of_a_process() -> dict[str, Any]:
    """n1 is stopped from second 10 to second 16."""
    record = partition() | {
        "card": {"kind": "pause"},
        "cut": [],
        "nodes": ["n1"],
        "ordered": {"held": {"states": {"n1": "stopped"}}, "healed": {"states": {"n1": "running"}}},
    }
    for each in record["measured"]:
        each["states"] = {"n1": "running" if each["phase"] == "heal" else "stopped"}
    return record


@pytest.mark.parametrize(
    ("fault", "what", "reason"),
    [
        (partition, "links", "a>b ordered cut: no beacons were reported"),
        (of_a_process, "states", "n1 ordered stopped: its agent did not report the state"),
        (skewed, "values", "clock of n1, s ahead: it was not measured"),
    ],
)
def test_a_measurement_that_lacks_what_was_ordered_proves_nothing(
    fault: Callable[[], dict[str, Any]], what: str, reason: str
) -> None:
    assert achieved(fault()).word == INSTALLED
    blind = fault()
    for each in blind["measured"]:
        if each["phase"] != "heal":
            each[what] = {}
    assert achieved(blind).word == INDETERMINATE and reason in achieved(blind).reason
    forgotten = fault()
    forgotten["measured"][-1][what] = {}
    assert achieved(forgotten).word == INDETERMINATE, "it was not measured after the heal"


def test_a_fault_that_orders_nothing_measurable_is_never_installed() -> None:
    assert achieved(skewed() | {"ordered": {}}).word == INDETERMINATE
    assert achieved(partition() | {"cut": []}).word == INDETERMINATE


def test_a_fault_that_was_not_carried_out_keeps_its_reason_and_is_never_installed() -> None:
    never = partition() | {"injected_ns": -1}
    assert achieved(never).word == INDETERMINATE
    assert achieved(never | {"achieved": "skipped", "reason": "no node led"}).word == SKIPPED
    assert achieved(never | {"achieved": "not achieved", "reason": "refused"}).reason == "refused"


def test_a_fault_still_in_force_is_indeterminate() -> None:
    assert achieved(partition() | {"heal_ordered_ns": -1}).word == INDETERMINATE


@pytest.mark.parametrize("damage", ["", 7, ["x"], {"phase": 1}, [{"phase": "inject", "links": {"a>b": "no"}}]])
def test_damaged_measurements_are_no_record(damage: Any) -> None:
    with pytest.raises(BrokenFile, match="fault: measured"):
        achieved(partition() | {"measured": damage})
    assert achieved(partition() | {"measured": []}).word == INDETERMINATE
