"""What became of each element: the counts are those of the checkers, and the page says who acknowledged the lost."""

from __future__ import annotations

import base64
import json
import tempfile
import zlib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from journals import write_header, write_journal

from checkers.base.columns import events_to_table
from checkers.base.history import Event, Type
from checkers.by_hand import judge_events
from harness.report.element_fates import KEPT, LOST, UNKNOWN, ElementFates, fates_of, words_of_lost
from harness.report.render import render
from harness.report.run_data import load
from harness.report.timeline_view import pack
from tests.support.records_of_runs import results_in

NS = 1_000_000_000
PUTS = {"set": ("add", "read"), "append-log": ("append", "read"), "queue": ("enqueue", "drain")}

Step = tuple[str, str, int | None, Type | None, Any, str]
"""f, key, value of the invoke, type of the completion (None: there is none), answer, node."""


def events(steps: list[Step]) -> list[Event]:
    """Operations one after another, each second one, each by a process of its own."""
    found: list[Event] = []
    for process, (f, key, value, type_, answer, node) in enumerate(steps):
        at = process * NS
        found.append(Event(len(found), at, process, Type.INVOKE, f, key, value))
        if type_ is not None:
            payload = json.dumps(answer) if isinstance(answer, list) else None
            number = answer if isinstance(answer, int) else value
            found.append(Event(len(found), at + NS // 2, process, type_, f, key, number, payload=payload, node=node))
    return found


def run_folder(folder: Path, checker: str, history: list[Event], faults: list[dict[str, Any]] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(events_to_table(history), folder / "history.parquet")
    results = {"verdict": "invalid", "exit_code": 1, "checkers": {checker: {"verdict": "invalid", "looked_at": {}}}}
    (folder / "results.json").write_text(json.dumps(results))
    write_header(folder)
    write_journal(folder, outcome={}, faults=faults or [])
    return folder


def fates(checker: str, history: list[Event]) -> ElementFates | None:
    with tempfile.TemporaryDirectory() as folder:
        return fates_of(load(run_folder(Path(folder), checker, history)))


ENDS = st.sampled_from([Type.OK, Type.OK, Type.OK, Type.INFO, Type.FAIL, None])


@st.composite
def histories(draw: st.DrawFn, checker: str) -> list[Event]:
    """Elements put into two objects, some of which answers forget."""
    put, look = PUTS[checker]
    steps: list[Step] = []
    there: dict[str, list[int]] = {"a": [], "b": []}
    for value in range(draw(st.integers(1, 8))):
        key, end = draw(st.sampled_from("ab")), draw(ENDS)
        steps.append((put, key, value, end, None, "n1"))
        if end is not Type.FAIL and draw(st.integers(0, 3)):
            there[key].append(value)
        if checker != "queue" and draw(st.booleans()):
            steps.append((look, key, None, draw(ENDS), list(there[key]), "n2"))
    return events([*steps, *((look, key, None, Type.OK, there[key], "n2") for key in "ab")])


@pytest.mark.parametrize(("checker", "figure"), [("set", "missing_from_last_read"), ("queue", "never_taken")])
@given(data=st.data())
def test_as_many_are_lost_as_the_checker_counts(checker: str, figure: str, data: st.DataObject) -> None:
    history = data.draw(histories(checker))
    found = fates(checker, history)
    puts = sum(e.type is Type.INVOKE and e.f == PUTS[checker][0] for e in history)
    failed = sum(e.type is Type.FAIL and e.f == PUTS[checker][0] for e in history)
    assert (len(found) if found else 0) == puts - failed
    assert (found.count(LOST) if found else 0) == judge_events(history, checker).looked_at[figure]


@pytest.mark.parametrize("checker", PUTS)
def test_an_element_is_kept_lost_or_unknown(checker: str) -> None:
    put, look = PUTS[checker]
    history = events(
        [
            (put, "a", 1, Type.OK, None, "n1"),
            (put, "a", 2, Type.OK, None, "n2"),
            (put, "a", 3, Type.INFO, None, ""),
            (put, "a", 4, Type.INFO, None, "n1"),
            (put, "a", 5, Type.FAIL, None, "n1"),
            (put, "b", 6, Type.OK, None, "n1"),  # no read looks at b
            (look, "a", None, Type.OK, [1, 4], "n3"),
        ]
    )
    found = fates(checker, history)
    assert found is not None
    assert found.fate.tolist() == [KEPT, LOST, UNKNOWN, KEPT, UNKNOWN]
    assert [found.nodes[code] for code in found.node[found.fate == LOST]] == ["n2"]


@pytest.mark.parametrize(("type_", "answer", "fate"), [(Type.INFO, None, UNKNOWN), (Type.OK, 1, KEPT)])
def test_what_a_dequeue_took_is_kept_and_what_an_open_one_may_have_taken_is_unknown(
    type_: Type, answer: int | None, fate: int
) -> None:
    steps: list[Step] = [("enqueue", "a", 1, Type.OK, None, "n1"), ("dequeue", "a", None, type_, answer, "n1")]
    found = fates("queue", events([*steps, ("drain", "a", None, Type.OK, [], "n1")]))
    assert found is not None and found.fate.tolist() == [fate]


def test_more_values_are_missing_than_open_dequeues_can_have_taken(tmp_path: Path) -> None:
    steps: list[Step] = [("enqueue", key, value, Type.OK, None, "n1") for value, key in enumerate("aabb")]
    steps += [("dequeue", key, None, Type.INFO, None, "n1") for key in "abb"]
    drained: list[Step] = [("drain", key, None, Type.OK, [], "n1") for key in "ab"]
    history = events([*steps, *drained, ("enqueue", "a", 9, Type.OK, None, "n1")])  # too late for the drain
    folder = run_folder(tmp_path / "run", "at-least-once-queue", history)
    found = fates_of(load(folder))
    assert found is not None and found.fate.tolist() == [LOST, LOST, UNKNOWN, UNKNOWN, UNKNOWN]
    results = results_in({"checkers": {"at-least-once-queue": {"verdict": "invalid"}}})
    assert words_of_lost(folder, results) == (
        "2 of them are lost for certain; the other 3 may have been taken by a dequeue without an answer, or be in a "
        "queue that was not drained. All were acknowledged by n1."
    )
    assert judge_events(history, "at-least-once-queue").looked_at["never_taken"] == 5


@pytest.mark.parametrize(
    ("checker", "f", "answer"), [("set", "add", [1, "2"]), ("set", "add", [[1]]), ("linearizability", "write", 1)]
)
def test_no_fates_are_shown_of_registers_and_of_answers_that_are_no_lists_of_numbers(
    checker: str, f: str, answer: Any
) -> None:
    steps: list[Step] = [(f, "a", 1, Type.OK, None, "n1"), ("read", "a", None, Type.OK, answer, "n1")]
    assert fates(checker, events(steps)) is None


def fault(number: int, start_s: float, end_s: float) -> dict[str, Any]:
    card = {"number": number, "kind": "partition", "name": "leader", "at_s": start_s, "heal_s": end_s}
    times = {"injected_ns": int(start_s * NS), "healed_ns": int(end_s * NS)}
    return {"card": card, "achieved": "installed", "words": "", **times}


@pytest.mark.parametrize(
    ("nodes", "faults", "words"),
    [
        ("n1", [(1, 0.0, 9.0)], "It was acknowledged by n1, during fault 1 (partition)."),
        ("n1", [], "It was acknowledged by n1."),
        ("n1 n1", [(1, 0.0, 9.0)], "All were acknowledged by n1, during fault 1 (partition)."),
        (
            "n2 n1 n1 n3 n4 n5",
            [(1, 0.0, 1.7), (2, 2.0, 9.0)],
            "2 were acknowledged by n1, 1 by n2, 1 by n3 and 2 by others. "
            "2 were acknowledged during fault 1 (partition) and 4 during fault 2 (partition).",
        ),
    ],
)
def test_who_had_acknowledged_the_lost_and_when(
    nodes: str, faults: list[tuple[int, float, float]], words: str, tmp_path: Path
) -> None:
    steps: list[Step] = [("add", "a", value, Type.OK, None, node) for value, node in enumerate(nodes.split())]
    history = events([*steps, ("read", "a", None, Type.OK, [], "n1")])
    folder = run_folder(tmp_path / "run", "set", history, [fault(*each) for each in faults])
    results = json.loads((folder / "results.json").read_text())
    assert words_of_lost(folder, results_in(results)) == words
    page = render(folder).read_text()
    assert "What became of each element" in page and words in page
    assert "elements: kept above, unknown between, lost below" in page
    packed, _ = pack(load(folder).operations, [], [], fates_of(load(folder)))
    drawn = zlib.decompress(base64.b64decode(packed["fate"]))
    assert list(drawn) == [LOST + 1] * len(nodes.split()) + [0], "the read puts nothing in"


@pytest.mark.parametrize("verdict", ["valid", "invalid"])
def test_nothing_is_said_of_a_set_that_lost_nothing(verdict: str, tmp_path: Path) -> None:
    history = events([("add", "a", 1, Type.OK, None, "n1"), ("read", "a", None, Type.OK, [1], "n1")])
    folder = run_folder(tmp_path / "run", "set", history)
    assert words_of_lost(folder, results_in({"checkers": {"set": {"verdict": verdict}}})) == ""


def test_the_head_says_where_the_lost_was_acknowledged_and_not_where_it_was_missed(tmp_path: Path) -> None:
    steps: list[Step] = [("enqueue", "a", 1, Type.OK, None, "n1"), ("drain", "a", None, Type.OK, [], "n2")]
    history = events(steps)
    folder = run_folder(tmp_path / "run", "queue", history, [fault(1, 0.0, 0.7)])
    results = {"verdict": "invalid", "checkers": {"queue": judge_events(history, "queue").to_json()}}
    (folder / "results.json").write_text(json.dumps(results))
    page = render(folder).read_text()
    head = page[page.index('id="verdict"') : page.index('<dl class="facts"')]
    assert "0.500 s into the test, on n1, key a. It was acknowledged during fault 1 (partition)." in head
    assert "The loss showed at 1.500 s." in head
