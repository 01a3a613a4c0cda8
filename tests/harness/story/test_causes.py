"""A loss of what was acknowledged is tied to the fault that can have taken it, and to no other."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from journals import write_header, write_journal

from checkers.base.results import RESULTS
from checkers.base.stored_run import StoredRun
from checkers.record.faults import (
    DAMAGES_DATA,
    KEPT,
    MAY_DIE,
    OLDEST_LOST,
    Achieved,
    Card,
    Condition,
    FaultRecord,
    Measurement,
    Ordered,
)
from harness.lake.facts import facts_of, symptom_of_run
from harness.report.render import render
from harness.story.causes import Leadership, cause_of_loss, leadership_of
from harness.story.findings import symptom_of, violations_by_cause
from harness.story.operations import window_of
from tests.support.records_of_runs import results_in

S = 1_000_000_000
DEAD = Ordered(Condition({"n1": "dead"}))
POWER: dict[str, Any] = {"settings": {KEPT: "lose"}, "ordered": DEAD}


def fault(number: int, kind: str, from_s: float, to_s: float = -1e-9, **more: Any) -> FaultRecord:
    card = Card(number, kind, "leader", from_s, to_s)
    return FaultRecord(
        card, Achieved.INSTALLED, "", nodes=("n1",), injected_ns=round(from_s * S), healed_ns=round(to_s * S), **more
    )


Led = list[tuple[float, str]]


def led_by(led: Led, forwards: bool = False, of_keys: bool = False) -> Leadership:
    return Leadership([(round(at * S), node) for at, node in led], forwards, of_keys)


def words(acknowledged_s: float, faults: list[FaultRecord], led: Led | None = None, by: str = "n1") -> str:
    """by: "" where servers pass requests on."""
    cause = cause_of_loss(round(acknowledged_s * S), by, faults, led_by(led or [], forwards=not by))
    return cause.words() if cause else "no fault"


OLD = Measurement("inject", 0, 1, values={f"n1: {OLDEST_LOST}": 14_000.0})
PARTITION = fault(1, "partition", 10, 20)
POWER_LOSS = fault(2, "power", 24, 26, **POWER)
KILL = fault(5, "kill", 24, 26, ordered=DEAD)
DAMAGE = fault(4, "damage", 24, 26, settings={DAMAGES_DATA: True})


@pytest.mark.parametrize(
    ("acknowledged_s", "faults", "led", "expected"),
    [
        # a power loss discards what was acknowledged shortly before it, whichever other faults were in force
        (19.5, [PARTITION, POWER_LOSS], [(0, "n2"), (12, "n1")], "in the 5 s before fault 2 (power)"),
        (22.5, [PARTITION, POWER_LOSS], None, "in the 2 s before fault 2 (power)"),
        (25.0, [PARTITION, POWER_LOSS], [(0, "n2"), (12, "n1")], "during fault 2 (power)"),
        # if the system seldom fsyncs, the window is as long as the measured loss of its disks
        (11.0, [fault(3, "power", 24, 26, **POWER, measured=(OLD,))], None, "in the 13 s before fault 3 (power)"),
        # a damaged disk may lose older data, unless an election explains the loss
        (3.0, [PARTITION, DAMAGE], [(0, "n1")], "in the 21 s before fault 4 (damage)"),
        (15.0, [PARTITION, DAMAGE], [(0, "n1"), (16, "n2")], "during fault 1 (partition)"),
        # a kill loses nothing that had time to reach a disk
        (22.5, [KILL], [(0, "n1")], "in the 2 s before fault 5 (kill)"),
        (12.5, [KILL], [(0, "n1")], "no fault"),
        # a partition loses nothing as long as no other node is elected
        (15.0, [PARTITION], [(0, "n1")], "no fault"),
        (15.0, [PARTITION], [(0, "n2"), (9, "n1")], "no fault"),
        (15.0, [PARTITION], [(0, "n1"), (16, "n2")], "during fault 1 (partition)"),
        # an isolated leader keeps acknowledging after another election, even shortly after the heal
        (15.0, [PARTITION], [(0, "n1"), (14, "n2")], "during fault 1 (partition)"),
        (20.2, [PARTITION], [(0, "n1"), (14, "n2")], "after fault 1 (partition) was healed"),
        (20.2, [PARTITION], [(0, "n1"), (14, "n2"), (40, "n3")], "after fault 1 (partition) was healed"),
        # but a new leader may acknowledge before its report arrives
        (20.2, [PARTITION], [(0, "n1"), (14, "n2"), (20.4, "n1")], "no fault"),
        (9.0, [PARTITION], [(0, "n1"), (12, "n2")], "in the 1 s before fault 1 (partition)"),
        (21.0, [PARTITION], [(0, "n1"), (22, "n2")], "after fault 1 (partition) was healed"),
        # if no node reports a leader, the isolated one may have led
        (15.0, [PARTITION], None, "during fault 1 (partition)"),
        (21.0, [PARTITION], None, "after fault 1 (partition) was healed"),
        (9.0, [PARTITION], None, "in the 1 s before fault 1 (partition)"),
        (4.0, [PARTITION], None, "no fault"),
    ],
)
def test_a_loss_has_the_fault_that_can_have_taken_it(
    acknowledged_s: float, faults: list[FaultRecord], led: Led | None, expected: str
) -> None:
    assert words(acknowledged_s, faults, led) == expected


def test_what_another_server_acknowledged_needs_an_election_to_be_lost_with_a_process_or_a_disk() -> None:
    for faults in ([KILL], [POWER_LOSS], [DAMAGE]):
        assert words(23.0, faults, [(0, "n2")], by="n2") == "no fault"
        assert words(23.0, faults, [(0, "n2"), (25, "n3")], by="n2") != "no fault"
    full = fault(6, "disk", 10, 26, settings={MAY_DIE: True})
    assert words(23.0, [full, fault(7, "partition", 24, 30)], [(0, "n2"), (27, "n3")], by="n2") == (
        "in the 1 s before fault 7 (partition)"
    )


def test_a_server_that_passes_requests_on_is_not_taken_for_its_leader() -> None:
    led: Led = [(0, "n2"), (12, "n3")]
    assert words(23.0, [KILL], led, by="") == "no fault"  # n3 led
    # n2 may still have believed that it led
    assert words(15.0, [PARTITION], led, by="") == "during fault 1 (partition)"
    assert words(23.0, [KILL], [(0, "n1")], by="") == "in the 1 s before fault 5 (kill)"


def message(index: int, process: int, f: str, at_s: float) -> dict[str, Any]:
    return {"index": index, "process": process, "type": index % 2, "f": f, "time_ns": round(at_s * S), "node": "n1"}


def test_a_lost_message_shows_under_the_power_loss_and_not_under_what_was_healed_before_the_poll() -> None:
    later = fault(9, "packets", 30, 40)
    events = [
        message(0, 0, "send", 22),
        message(1, 0, "send", 23),
        message(2, 1, "poll", 44),
        message(3, 1, "poll", 45),
    ]
    witness = {"kind": "lost-write", "summary": "7 was sent and never polled", "events": events}
    results = results_in({"checkers": {"kafka": {"verdict": "invalid", "witness": [witness]}}})
    [violation] = violations_by_cause(results)
    led = led_by([])
    assert symptom_of(violation, [PARTITION, POWER_LOSS, later], led).faults == ("power",)
    assert symptom_of(violation, [PARTITION, later], led).faults == ("partition",)


def lost_write(at_s: float) -> Mapping[str, Any]:
    events = [message(0, 0, "send", at_s - 0.1), message(1, 0, "send", at_s)]
    events += [message(2, 1, "poll", at_s + 20), message(3, 1, "poll", at_s + 21)]
    moment_ns = round((at_s + 21) * S)
    witness = {"kind": "lost-write", "summary": "7 was lost", "events": events, "facts": {"moment_ns": moment_ns}}
    return {"checkers": {"kafka": {"verdict": "invalid", "title": "Kafka", "witness": [witness]}}}


def stored(folder: Path, acknowledged_s: float, faults: Sequence[FaultRecord], led: Led, **declares: bool) -> Path:
    """A run of n1 and n2, and who led as the harness records it: in `leaders` each pair of node and epoch once."""
    counted = declares.get("elections", True)
    seen = [(round(at * S), node, epoch if counted else 0) for epoch, (at, node) in enumerate(led)]
    first = {entry[1:]: entry for entry in reversed(seen)}
    leaders = [dict(zip(("time_ns", "node", "epoch"), entry, strict=True)) for entry in sorted(first.values())]
    report = {"looks": 1, "epoch": 0, "role": "leader", "leader": None}
    reports = [{"time_ns": at_ns, "until_ns": at_ns, "node": node, **report} for at_ns, node, _ in seen]
    spec = {"nodes": 2, "backend": "docker"}
    write_header(folder, run_id="abc", seed=1, started_utc="2026-11-20T03:14:12+00:00", spec=spec)
    write_journal(folder, outcome={"declares": declares, "leaders": leaders, "reports": reports}, faults=faults)
    results = {"verdict": "invalid", "exit_code": 1, "judging_s": 1.0, **lost_write(acknowledged_s)}
    (folder / RESULTS).write_text(json.dumps(results))
    return folder


LATER = fault(8, "kill", 34, 35, ordered=DEAD)
DEPOSED: Led = [(0, "n1"), (14, "n2"), (40, "n1")]


@pytest.mark.parametrize(
    ("acknowledged_s", "led", "declares", "expected"),
    [
        (15.0, DEPOSED, {}, "partition"),
        (20.2, DEPOSED, {}, "partition"),  # deposed, without having heard of the heal yet
        (36.0, DEPOSED, {}, "partition"),
        (36.0, DEPOSED, {"registers_brokers": True}, "kill"),  # n1 may lead the partition that lost the message
        (36.0, DEPOSED, {"leaders_of_keys": True}, "kill"),
        (36.0, [(0, "n2")], {"elections": False}, "kill"),  # n1 answered, and no report shows that it led
        (15.0, [(0, "n1")], {}, "none"),
        (15.0, [(0, "n1"), (2, "n2"), (4, "n1")], {"elections": False}, "none"),
        (15.0, [(0, "n1"), (2, "n2"), (4, "n1"), (16, "n2")], {"elections": False}, "partition"),
    ],
)
def test_the_lake_and_the_page_name_one_fault_for_a_loss(
    tmp_path: Path, acknowledged_s: float, led: Led, declares: dict[str, bool], expected: str
) -> None:
    folder = stored(tmp_path, acknowledged_s, [PARTITION, LATER], led, **declares)
    found = symptom_of_run(folder)
    assert found is not None
    [row] = facts_of(folder).rows["violations"].to_pylist()
    assert (row["symptom"], row["faults"]) == (found[1].id, expected)
    named = re.findall(r"it was acknowledged [^;(]*fault \d+ \((\w+)\)", render(folder).read_text())
    assert set(named) == ({expected} - {"none"})


def test_nobody_is_known_to_have_led_where_a_trace_cannot_be_read(tmp_path: Path) -> None:
    folder = stored(tmp_path, 15.0, [PARTITION], DEPOSED)
    assert leadership_of(folder).led
    traces = StoredRun(folder).trace
    traces.mkdir(parents=True)
    (traces / "n1.parquet").write_bytes(b"torn")
    assert leadership_of(folder) == Leadership()


def test_a_drawing_of_many_operations_ends_with_the_one_that_has_no_place() -> None:
    events = [message(index, index // 2, "read", index / 10) for index in range(40)]
    window = window_of(events, {"letters": {"20": "A"}, "culprit": "A"})
    shown = window.first(5)
    assert [op.invoke for op in shown.operations] == [12, 14, 16, 18, 20]
    assert shown.culprit == window.culprit
    assert [op.invoke for op in window_of(events, {}).first(3).operations] == [0, 2, 4]
