"""Statistics: counts, latencies with and without faults, and when they say nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from histories import Script, write_stream
from journals import write_journal

from checkers.base.history import CREATE, Event, Type
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.judging import judge_run
from checkers.run_quality.history_figures import STATISTICS
from checkers.sealing.seal import seal

MS = 1_000_000


def statistics_of(folder: Path, events: list[Event], faults: list[dict[str, int]] | None = None) -> Verdict:
    seal(write_stream(folder, events))
    if faults is not None:
        write_journal(folder, faults=faults)
    return judge_run(StoredRun(folder), [STATISTICS])["statistics"]


def at(events: list[Event], *times_ms: int) -> list[Event]:
    return [replace(event, time_ns=ms * MS) for event, ms in zip(events, times_ms, strict=True)]


def test_it_counts_every_way_to_end(tmp_path: Path) -> None:
    script = Script().invoke(0, "write", 1).ok(0).invoke(0, "write", 2).fail(0).invoke(0, "write", 3).info(0)
    script.invoke(1, "write", 4).invoke(2, "read").ok(2, 1)
    verdict = statistics_of(tmp_path, script.events)
    assert verdict.validity is Validity.VALID
    counts = {"invoked": 4, "ok": 1, "fail": 1, "info": 1, "open": 1}
    assert verdict.details["functions"]["write"].items() >= counts.items()
    assert verdict.looked_at["operations"] == 5
    assert verdict.looked_at["ok"] == 2


def test_it_counts_unknown_outcomes_although_a_connection_was_refused(tmp_path: Path) -> None:
    refused = "ConnectionRefusedError: [Errno 111] Connection refused"
    script = Script().invoke(0, "write", 1).ok(0).invoke(0, "write", 2).info(0).invoke(1, "write", 3).info(1)
    script.invoke(2, "write", 4).fail(2)
    events = [replace(e, error=refused) if e.type is Type.FAIL or e.process == 1 else e for e in script.events]
    assert statistics_of(tmp_path, events).details["refused_connections"] == 1


def test_it_counts_errors_of_clients_by_their_text_without_numbers_and_leaves_the_nemesis_out(tmp_path: Path) -> None:
    script = Script().invoke(0, "write", 1).info(0).invoke(1, "write", 2).info(1).invoke(2, "read").fail(2)
    errors = iter(["timeout after 12.5 s", "timeout after 9.75 s", "timeout after 1.0 s"])
    events = [replace(e, error=next(errors)) if e.type is not Type.INVOKE else e for e in script.events]
    nemesis = [Event(index=0, time_ns=0, process=-1, type=Type.INVOKE, f="inject-kill", error="of the nemesis")]
    nemesis += [replace(nemesis[0], type=Type.FAIL)]
    both = [replace(e, index=i, time_ns=i) for i, e in enumerate([*nemesis, *events])]
    verdict = statistics_of(tmp_path, both)
    assert verdict.details["errors"] == [{"error": "timeout after # s", "fail": 1, "info": 2}]


def test_latency_is_split_by_faults(tmp_path: Path) -> None:
    script = Script().invoke(0, "read").ok(0, None).invoke(0, "read").ok(0, None).invoke(0, "read").ok(0, None)
    events = at(script.events, 0, 2, 100, 150, 300, 304)
    faults = [{"injected_ns": 140 * MS, "healed_ns": 200 * MS}, {"injected_ns": -1, "healed_ns": -1}]
    verdict = statistics_of(tmp_path, events, faults)
    latency = verdict.details["functions"]["read"]["latency_ms"]
    assert latency["under faults"] == {"count": 1, "p50": 50.0, "p95": 50.0, "p99": 50.0, "max": 50.0}
    assert latency["without faults"]["count"] == 2
    assert latency["without faults"]["p50"] == 3.0
    assert verdict.looked_at["seconds_under_faults"] == 0.06


def test_a_fault_that_never_healed_lasts_to_the_end(tmp_path: Path) -> None:
    script = Script().invoke(0, "read").ok(0, None).invoke(0, "read").ok(0, None)
    verdict = statistics_of(tmp_path, at(script.events, 0, 10, 500, 600), [{"injected_ns": 100 * MS, "healed_ns": -1}])
    assert verdict.looked_at["seconds_under_faults"] == 0.5
    assert verdict.details["functions"]["read"]["latency_ms"]["under faults"]["count"] == 1


def test_an_operation_that_never_once_succeeded_makes_it_unknown(tmp_path: Path) -> None:
    script = Script().invoke(0, "write", 1).info(0).invoke(1, "write", 2).fail(1, "no quorum").invoke(2, "read")
    verdict = statistics_of(tmp_path, script.ok(2, None).events)
    assert verdict.validity is Validity.UNKNOWN
    words = "no write ever succeeded, so the run shows nothing about it; the last write ended with no quorum"
    assert verdict.reason == words


def test_where_no_operation_ended_no_error_is_named(tmp_path: Path) -> None:
    verdict = statistics_of(tmp_path, Script().invoke(0, "write", 1).invoke(1, "read").ok(1, None).events)
    assert verdict.reason == "no write ever succeeded, so the run shows nothing about it"


def test_a_history_of_faults_alone_is_not_applicable(tmp_path: Path) -> None:
    events = [replace(e, process=-1, key=None) for e in Script().invoke(0, "read").events]
    assert statistics_of(tmp_path, events).validity is Validity.NOT_APPLICABLE


def test_a_quantile_lies_between_two_latencies_as_numpy_says(tmp_path: Path) -> None:
    rng = Random(3)
    script = Script()
    times_ms, took_ms = [], []
    for _ in range(101):
        script.invoke(0, "read").ok(0, None)
        begin = times_ms[-1] + 1 if times_ms else 0
        took_ms.append(rng.randrange(1, 60))
        times_ms += [begin, begin + took_ms[-1]]
    verdict = statistics_of(tmp_path, at(script.events, *times_ms))
    latency = verdict.details["functions"]["read"]["latency_ms"]["without faults"]
    for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)):
        assert latency[name] == round(float(np.quantile(took_ms, q)), 3)


@pytest.mark.parametrize(
    ("f", "measured_ms", "loop_late_ms", "validity"),
    [
        ("read", 12.0, 0.5, Validity.UNKNOWN),
        ("read", 12.0, 800.0, Validity.VALID),
        ("read", 2_800.0, 0.5, Validity.VALID),
        ("read", None, 0.5, Validity.VALID),
        (CREATE, 12.0, 0.5, Validity.VALID),
    ],
)
def test_a_recorder_that_widens_operations_is_noticed(
    tmp_path: Path, f: str, measured_ms: float | None, loop_late_ms: float, validity: Validity
) -> None:
    """Every operation takes 3 s in the history; set-up waits for clients that start."""
    script = Script().invoke(0, f).ok(0, 1).invoke(0, f).ok(0, 1)
    seal(write_stream(tmp_path, at(script.events, 0, 3_000, 3_001, 6_001)))
    took = {} if measured_ms is None else {f: measured_ms}
    write_journal(tmp_path, outcome={"took_ms": took, "loop_late_ms": {"p50": loop_late_ms}})
    verdict = judge_run(StoredRun(tmp_path), [STATISTICS])["statistics"]
    assert verdict.validity is validity
    assert ("read took 3000 ms in the history, and 12 ms by the clocks" in verdict.reason) is (
        validity is Validity.UNKNOWN
    )
