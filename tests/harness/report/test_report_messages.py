"""The diagram of messages: what is recorded is drawn, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded_runs import unpacked
from report_runs import build

from checkers.base.history import Type
from harness.judge.judge_run import judge
from harness.report import fault_views as faults
from harness.report import roles
from harness.report.run_data import ReportData, load
from harness.report.witness import message_diagram
from harness.report.witness.message_diagram import GUTTER, WIDTH, Diagram
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
