"""The lines around a violation: times in logs as systems write them, and all sources in one order."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from report_runs import build

from harness.report import fault_views as faults
from harness.report.logs_around import FAR_NS, LINES_MOST, NEAR_NS, around, time_of
from harness.report.run_data import load

BEGAN = datetime(2026, 11, 24, 10, 11, 40, tzinfo=UTC)
MINUTE_NS = 60 * 10**9


@pytest.mark.parametrize(
    "line",
    [
        '{"level":"info","ts":"2026-11-24T10:11:49.460Z","msg":"raft"}',
        "2026-11-24 10:11:49.460 UTC [17] LOG:  database system is ready",
        "2026/11/24 10:11:49,460 INFO  node started",
        "[2026-11-24 10:11:49,460] INFO [KafkaRaftServer nodeId=1]",
        "2026-11-24T12:11:49.460+02:00 started",
        "2026-11-24 15:41:49.460 a node in India, without its zone",
        "17:M 24 Nov 2026 10:11:49.460 * Ready to accept connections",
        "Nov 24 10:11:49.460 n1 daemon[17]: ready",
        "I1124 10:11:49.460000   17 raft.cc:12] leader",
        '{"time": 1795515109.460, "event": "leader"}',
        '{"time": 1795515109460, "event": "leader"}',
        "10:11:49.460 [main] INFO ready",
    ],
)
def test_a_time_is_recognised_as_systems_write_it(line: str) -> None:
    assert time_of(line, BEGAN, MINUTE_NS) == 9_460_000_000, line


@pytest.mark.parametrize(
    "line",
    [
        "goroutine 17 [running]:",
        "  at Raft.step(Raft.java:1124)",
        "2025-11-24T10:11:49.460Z a line of last year",
        "listening on 10.11.49.46:2380, 1795515109 bytes of 12345678901234567890",
        "2026-13-44 10:11:49 no such day",
        "",
    ],
)
def test_a_line_without_a_time_of_this_run_has_none(line: str) -> None:
    assert time_of(line, BEGAN, MINUTE_NS) is None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build(tmp_path / "test-partition" / "run", "stale")


def test_output_traces_faults_and_clients_stand_in_one_order(folder: Path) -> None:
    home = folder / "nodes" / "n1"
    (home / "copies" / "0").mkdir(parents=True)
    (home / "server.log").write_text("2026-11-20T03:14:22.500Z lost the leader\n  in raft.step\n")
    (home / "noise.out").write_text("ready\n")
    (home / "copies" / "0" / "old.log").write_text("2026-11-20T03:14:22.500Z a copy is no output\n")
    data = load(folder)
    fault_views = faults.views(data)
    at_ns = 10_600_000_000
    found = around(data, fault_views, at_ns, data.operations.keys[0])
    assert found is not None
    assert [line.time_ns for line in found.lines] == sorted(line.time_ns for line in found.lines)
    assert {"output", "trace", "fault", "client"} == {line.kind for line in found.lines}
    output = [(line.time_ns, line.source, line.words) for line in found.lines if line.kind == "output"]
    assert output == [(10_500_000_000, "n1", "2026-11-20T03:14:22.500Z lost the leader"),
                      (10_500_000_000, "n1", "in raft.step")]  # fmt: skip
    assert found.unread == ["nodes/n1/noise.out"]
    often = [abs(line.time_ns - at_ns) for line in found.lines if line.words.startswith(("append", "flush", "high"))]
    assert often and max(often) <= NEAR_NS
    assert max(abs(line.time_ns - at_ns) for line in found.lines) <= FAR_NS
    assert len(found.lines) <= LINES_MOST


def test_a_run_without_a_violation_or_a_time_has_no_such_lines(folder: Path) -> None:
    data = load(folder)
    assert around(data, [], -1, "") is None


def test_faults_elections_and_errors_are_kept_when_the_nearest_lines_fill_the_page(folder: Path) -> None:
    home = folder / "nodes" / "n1"
    home.mkdir(parents=True)
    noise = [f"2026-11-20T03:14:22.{ms:03}Z heartbeat {n}" for ms in range(400, 700) for n in range(3)]
    (home / "server.log").write_text("\n".join(["2026-11-20T03:14:18.000Z FATAL cannot write", *noise]) + "\n")
    data = load(folder)
    fault_views, at_ns = faults.views(data), 10_600_000_000
    found = around(data, fault_views, at_ns, data.operations.keys[0])
    assert found is not None and len(found.lines) == LINES_MOST and found.left_out
    assert any("FATAL cannot write" in line.words for line in found.lines)
    near = [t for f in fault_views if f.happened for t in (f.start_ns, f.end_ns) if abs(t - at_ns) <= FAR_NS]
    assert [line.time_ns for line in found.lines if line.kind == "fault"] == sorted(near)
    assert found.whole_ms < 500, "the page states the span of which nothing is left out"
