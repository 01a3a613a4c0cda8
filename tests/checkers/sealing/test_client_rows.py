"""Rows of clients that contradict one another or hide from the judge are named, and never pass for right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from histories import Script, write_stream
from journals import write_journal

from checkers.base.columns import events_to_table
from checkers.base.history import CREATE, NEMESIS, Event, MalformedHistory
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.judging import judge_run
from checkers.registers.checker import LINEARIZABILITY
from checkers.sealing.seal import seal
from checkers.sealing.walk import Walk


def with_main_at(folder: Path, row: int) -> None:
    """A journal whose main phase begins with this row of the history."""
    write_journal(folder, outcome={"phases": [{"name": "main", "start_ns": 0, "end_ns": 9, "first_row": row}]})


def events_of_two_keys() -> list[Event]:
    """write 1, cas 1 to 2 and a read of key a; a read of key b."""
    one = Script("a").invoke(0, "write", 1).ok(0).invoke(0, "cas", 1, 2).ok(0).invoke(0, "read").ok(0, 2).events
    return numbered([*one, *Script("b").invoke(1, "read").ok(1).events])


def numbered(events: Sequence[Event]) -> list[Event]:
    return [replace(event, index=index) for index, event in enumerate(events)]


def changed(row: int, **changes: Any) -> list[Event]:
    events = events_of_two_keys()
    events[row] = replace(events[row], **changes)
    return events


def verdict_of(folder: Path, events: Sequence[Event]) -> Verdict:
    seal(write_stream(folder, list(events)))
    return judge_run(StoredRun(folder), [LINEARIZABILITY])["linearizability"]


def test_answers_that_repeat_their_invokes_are_sound(tmp_path: Path) -> None:
    assert verdict_of(tmp_path, events_of_two_keys()).validity is Validity.VALID


@pytest.mark.parametrize("row", [1, 3])
def test_an_answer_without_a_value_contradicts_nothing(tmp_path: Path, row: int) -> None:
    assert verdict_of(tmp_path, changed(row, value=None, value2=None)).validity is Validity.VALID


@pytest.mark.parametrize(
    ("row", "changes", "words"),
    [
        (1, {"value": 4}, "row 1: process 0: write of 1 was acknowledged as 4 (invoked in row 0)"),
        (0, {"value": None}, "row 1: process 0: write of nil was acknowledged as 1"),
        (1, {"value": None, "value2": 1}, "row 1: process 0: write of 1 was acknowledged as [nil 1]"),
        (3, {"value": 2}, "row 3: process 0: cas of [1 2] was acknowledged as [2 2]"),
        (3, {"value2": 3}, "row 3: process 0: cas of [1 2] was acknowledged as [1 3]"),
        (3, {"value2": None}, "row 3: process 0: cas of [1 2] was acknowledged as [1 nil]"),
        (2, {"value": None, "value2": None}, "row 2: a cas needs [expected new], not nil"),
        (1, {"payload": "[7]"}, "row 1: the value of this write is [7], but registers hold integers"),
        (5, {"payload": "true"}, "row 5: the value of this read is true, but registers hold integers"),
    ],
)
def test_a_contradiction_makes_its_key_unknown_and_names_the_row(
    tmp_path: Path, row: int, changes: dict[str, Any], words: str
) -> None:
    verdict = verdict_of(tmp_path, changed(row, **changes))
    assert verdict.validity is Validity.UNKNOWN
    assert verdict.reason.startswith(f"key a: {words}")
    assert verdict.looked_at["unknown_keys"] == 1


def test_what_contradicts_itself_on_one_key_hides_no_violation_of_another(tmp_path: Path) -> None:
    events = changed(1, value=4)
    events[-1] = replace(events[-1], value=99)
    verdict = verdict_of(tmp_path, events)
    assert verdict.validity is Validity.INVALID
    assert verdict.reason.startswith("key a: row 1")
    assert [witness.facts["key"] for witness in verdict.witnesses] == ["b"]


KEYLESS_ROW, OWN_KEYLESS, OWN_KEYED = events_of_two_keys(), events_of_two_keys(), events_of_two_keys()
KEYLESS_ROW[6:] = [replace(event, key=None) for event in KEYLESS_ROW[6:]]
OWN_KEYLESS[6:] = [replace(event, key=None, f="look") for event in OWN_KEYLESS[6:]]
OWN_KEYED[:6] = [replace(event, key=None) for event in OWN_KEYED[:6]]
OWN_KEYED[6:] = [replace(event, f="look") for event in OWN_KEYED[6:]]
CREATED_LATE = numbered([*(replace(e, f=CREATE) if e.index < 2 else e for e in events_of_two_keys())])
OF_NEMESIS = [replace(e, process=NEMESIS) if e.index >= 6 else e for e in events_of_two_keys()]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (KEYLESS_ROW, "row 6: this operation has no key, but the operation of row 0 has one"),
        (OWN_KEYLESS, "row 6: this operation has no key, but the operation of row 0 has one"),
        (OWN_KEYED, "row 0: this operation has no key, but the operation of row 6 has one"),
        (CREATED_LATE, "row 0: this create is not in set-up but in or after the main phase"),
        (OF_NEMESIS, "row 6: the nemesis has no keys, but this row of process -1 has one"),
        (changed(6, process=-2), "row 6: process -2 is neither a client"),
    ],
    ids=[
        "keyless",
        "keyless, of another function",
        "keyed, of another function",
        "created late",
        "nemesis",
        "process -2",
    ],
)
def test_rows_that_hide_from_the_judge_are_refused(tmp_path: Path, events: list[Event], words: str) -> None:
    with_main_at(tmp_path, 0)
    with pytest.raises(MalformedHistory, match=words.replace("(", r"\(").replace(")", r"\)")):
        seal(write_stream(tmp_path, events))
    assert not (tmp_path / "history.parquet").exists()
    assert (tmp_path / "history.arrows").exists(), "what was recorded is not lost"


def test_keys_are_made_before_the_main_phase_and_a_history_may_have_none(tmp_path: Path) -> None:
    made = Script("a").invoke(0, CREATE).ok(0).events
    with_main_at(tmp_path, len(made))
    assert verdict_of(tmp_path, numbered([*made, *events_of_two_keys()])).validity is Validity.VALID
    keyless = tmp_path / "keyless"
    keyless.mkdir()
    seal(write_stream(keyless, [replace(event, key=None) for event in events_of_two_keys()[:6]]))


def test_keys_of_other_functions_are_a_matter_of_their_own_checkers(tmp_path: Path) -> None:
    seal(write_stream(tmp_path, [replace(event, f="look", value2=None) for event in OWN_KEYLESS]))


@pytest.mark.parametrize("cut", range(1, 8))
def test_pieces_are_held_together(cut: int) -> None:
    """An answer in one piece contradicts its invoke in another; a keyless row is one beside a key of another piece."""
    for events, row in ((changed(1, value=4), 1), (changed(3, value=3), 3)):
        walk = Walk("history")
        kinds = [walk.events(events_to_table(piece))["kind"].tolist() for piece in (events[:cut], events[cut:])]
        assert [at for at, kind in enumerate(kinds[0] + kinds[1]) if kind == 3] == [row]
    walk = Walk("history")
    with pytest.raises(MalformedHistory, match="row 6: this operation has no key"):
        for piece in (KEYLESS_ROW[:cut], KEYLESS_ROW[cut:]):
            walk.verify(events_to_table(piece))


def test_a_text_that_is_no_text_is_refused() -> None:
    table = events_to_table(events_of_two_keys())
    at = table.schema.get_field_index("key")
    bytes_ = pa.array([b"\xe5"] * len(table), pa.binary())
    broken = pa.Array.from_buffers(pa.string(), len(table), bytes_.buffers())
    with pytest.raises(MalformedHistory, match="history: the rows from 0 on are corrupt"):
        Walk("history").verify(table.set_column(at, table.schema.field(at), broken))
