"""What was recorded around a violation: the diagram of messages shows it and no more; lines of logs, in one order."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from recorded_runs import unpacked
from report_runs import build

from checkers.base.history import Type
from harness.judge.judge_run import judge
from harness.report import fault_views as faults
from harness.report import message_diagram, roles
from harness.report.logs_around import FAR_NS, LINES_MOST, NEAR_NS, around, time_of
from harness.report.message_diagram import GUTTER, WIDTH, Diagram
from harness.report.run_data import ReportData, load
from harness.story.findings import findings
from harness.story.operations import DrawnWindow
from harness.story.story import Story
from tests.support.records_of_runs import witness_in


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ReportData:
    return load(build(tmp_path_factory.mktemp("runs") / "stale", "stale"))


def drawn(data: ReportData) -> tuple[Story, Diagram]:
    told = Story(witness_in(findings(data.results)[0].lead.witness))
    found = message_diagram.draw(data, told.bars, faults.views(data), roles.segments(data))
    assert found is not None
    return told, found


def test_every_request_goes_to_the_server_that_answered_it(data: ReportData) -> None:
    told, diagram = drawn(data)
    answered = [op for op in told.bars.operations if op.type is Type.OK]
    names = {label.words: label.y - 4 for label in diagram.labels if label.css == "name"}
    requests = [line for line in diagram.lines if line.css in ("asked", "bad")]
    assert len(requests) == len(answered)
    for op in answered:
        assert any(
            (line.y1, line.y2) == (names[f"process {op.process}"], names[op.node]) and line.head for line in requests
        ), f"process {op.process} asked {op.node}"
    assert len([line for line in diagram.lines if line.css == "bad"]) == 1, "red is the answer that cannot be"


def test_time_runs_to_the_right_and_stays_on_the_paper(data: ReportData) -> None:
    _, diagram = drawn(data)
    for line in diagram.lines:
        assert line.css == "vote" or line.x1 <= line.x2
        assert GUTTER <= line.x1 <= WIDTH and GUTTER <= line.x2 <= WIDTH
    assert all(box.x >= GUTTER and box.x + box.width <= WIDTH for box in diagram.boxes)
    assert any(box.css == "fault" for box in diagram.boxes) and any(box.css == "cut" for box in diagram.boxes)


def test_what_each_node_knew_is_of_the_moment_of_the_answer(data: ReportData) -> None:
    told, diagram = drawn(data)
    wrong = told.bars.culprit
    assert wrong is not None
    assert diagram.at_ns == wrong.end_ns
    knew = {k.node: k for k in diagram.knew}
    assert set(knew) == set(data.servers)
    assert [k.node for k in diagram.knew if k.answered] == [wrong.node]
    assert knew[wrong.node].role == "leader, epoch 1", "it did not know of the one that had been elected"
    assert any(k.role == "leader, epoch 2" for k in diagram.knew)
    fault = next(f for f in faults.views(data) if f.start_ns <= wrong.end_ns <= f.end_ns)
    apart = {n for pair in fault.cut if wrong.node in pair for n in pair} - {wrong.node}
    assert set(knew[wrong.node].cut.split(", ")) == apart


def test_every_arrow_has_words_and_the_list_for_narrow_paper_has_the_same_messages(data: ReportData) -> None:
    told, diagram = drawn(data)
    wrong = told.bars.culprit
    assert wrong is not None
    said = [label.words for label in diagram.labels]
    assert sum(words.startswith("votes for ") for words in said) == sum(line.css == "vote" for line in diagram.lines)
    assert sum(words.startswith("holds ") for words in said) == sum(line.css == "copy" for line in diagram.lines)
    assert any(words.startswith("✂ cut from ") for words in said)
    nobody = [label for label in diagram.labels if label.words.startswith(f"{wrong.node} asked nobody: cut from ")]
    assert [label.css for label in nobody] == ["bad"]
    assert [m.time_ns for m in diagram.messages] == sorted(m.time_ns for m in diagram.messages)
    assert (wrong.end_ns, f"{wrong.node} → process {wrong.process}") in {(m.time_ns, m.way) for m in diagram.messages}


def test_a_violation_that_no_client_met_is_drawn_from_traces(data: ReportData) -> None:
    node, table = next(iter(data.traces.items()))
    rows = [{**row, "node": node, "table": "trace"} for row in table.slice(0, 3).to_pylist()]
    diagram = message_diagram.draw(data, DrawnWindow(), [], [], rows)
    assert diagram is not None and not diagram.of_clients
    assert [m.bad for m in diagram.messages] == [False, False, True]
    wrong = next(label for label in diagram.labels if label.css == "bad")
    beside = [label for label in diagram.labels if label.y == wrong.y and label is not wrong]
    assert all(label.x > wrong.x + 40 or label.x < wrong.x - 40 for label in beside), "no words cover others"
    assert [k.node for k in diagram.knew if k.answered] == [node]


def test_a_witness_without_servers_or_times_has_no_diagram(data: ReportData) -> None:
    told, _ = drawn(data)
    assert message_diagram.draw(data, DrawnWindow(), [], []) is None
    nowhere = [op for op in told.bars.operations if op.type is not Type.OK]
    assert message_diagram.draw(data, DrawnWindow(tuple(nowhere)), [], []) is None


def test_what_a_deposed_leader_appends_itself_is_no_copy_of_its_successors_write(tmp_path: Path) -> None:
    """The recorded run: n1 was deposed, went on appending, and its log grew beyond the offset of the missed write."""
    run = unpacked("kraft-stale-read", tmp_path)
    judge(run, None, lambda _: None, report=False)
    told, diagram = drawn(load(run))
    assert told.bars.culprit is not None and told.bars.culprit.node == "n1"
    y = {label.words: label.y - 4 for label in diagram.labels if label.css == "name"}
    copies = [(line.y1, line.y2) for line in diagram.lines if line.css == "copy"]
    assert copies == [(y["n3"], y["n2"])], "the new leader's write reached n2, and not n1"
    assert [dot.y for dot in diagram.dots if dot.css == "committed"] == [y["n3"]]


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
