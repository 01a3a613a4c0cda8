"""Witnesses drawn with characters: every kind, as wide as ordered, and what is wrong is marked without colour."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from edn_files import read_any
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from checkers.base.checker import Budget
from checkers.base.history import Event, Type
from checkers.base.verdict import Validity
from checkers.by_hand import Ask, judge_as
from harness.story.story import Story
from harness.terminal.witness import draw_witness, show_witness
from tests.support.records_of_runs import witness_in

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "histories"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the recorded histories are not here: no ../shared/data")


def drawn(witness: dict[str, Any], width: int = 80, **options: bool) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, highlight=False)
    console.print(draw_witness(Story(witness_in(witness)), width, **options))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def history(*lines: str) -> list[Event]:
    """Lines like `0 invoke write 5` or `0 ok txn [["append", "x", 1]]`."""
    events = []
    for index, line in enumerate(lines):
        process, type_, f, value = line.split(" ", 3)
        given = json.loads(value)
        plain = given is None or isinstance(given, int)
        payload = None if plain else json.dumps(given)
        kind = Type[type_.upper()]
        events.append(Event(index, 0, int(process), kind, f, None, given if plain else None, None, payload))
    return events


def witness_of(model: str, *lines: str) -> dict[str, Any]:
    verdict = judge_as(history(*lines), Ask(model), Budget())
    assert verdict.validity is Validity.INVALID
    return verdict.witnesses[0].to_json()


STALE = (
    *("0 invoke write 1", "0 ok write 1", "1 invoke write 2", "1 ok write 2", "3 invoke write 3"),
    *("2 invoke read null", "2 ok read 1"),
)


def test_a_window_shows_bars_the_culprit_what_it_held_and_what_would_have_been_right() -> None:
    lines = drawn(witness_of("register", *STALE))
    text = "\n".join(lines)
    [bar] = [line for line in lines if line.startswith("  p2 ")]
    assert bar.endswith("╡ ✗") and "read 1" in bar
    assert any(line.startswith("  p1 ") and "write 2" in line and line.endswith("┤") for line in lines)
    assert "The longest legal order" in text
    assert "an answer of 3 (its write was under way) or 2 (acknowledged at index 3)." in " ".join(text.split())


def test_an_operation_without_an_answer_has_an_open_end() -> None:
    lines = drawn(
        witness_of(
            "queue",
            *("0 invoke enqueue 1", "0 ok enqueue 1", "1 invoke enqueue 2", "1 ok enqueue 2", "3 invoke enqueue 1"),
            *("2 invoke dequeue null", "2 ok dequeue 2"),
        )
    )
    assert any("enqueue 1" in line and line.endswith("▸") for line in lines)
    assert "  Right would have been: an answer of 1." in lines


def test_the_order_of_events_is_that_of_the_columns() -> None:
    witness = {
        "kind": "stale read",
        "facts": {"culprit": "C", "letters": {"0": "A", "1": "B", "3": "C"}},
        "events": [
            {"index": index, "process": process, "type": type_, "f": f, "value": value}
            for index, process, type_, f, value in [
                (0, 0, 0, "add", 1),
                (1, 1, 0, "read", None),
                (2, 1, 1, "read", 1),
                (3, 1, 0, "read", None),
                (4, 1, 1, "read", 0),
                (5, 0, 1, "add", 1),
            ]
        ],
    }
    ruler, add, reads = drawn(witness)[1:4]
    assert ruler.split()[:2] == ["index", "0"]
    assert add.index("├") < reads.index("├") < reads.index("┤") < reads.index("╞") < reads.index("╡") < add.index("┤")


def test_what_may_have_been_done_before_the_window_is_said() -> None:
    text = "\n".join(
        drawn(
            witness_of(
                "counter",
                *("0 invoke add 1", "1 invoke read null", "1 ok read 1", "1 invoke read null", "1 ok read 0"),
                "0 ok add 1",
            )
        )
    )
    assert "A: add of 1, which was under way before this window and may have happened" in text


MODELS = {
    "set": ("0 invoke add 1", "0 ok add 1", "2 invoke read null", "2 ok read []"),
    "counter": ("0 invoke add 3", "0 ok add 3", "1 invoke read null", "1 ok read 5"),
    "append-log": ("0 invoke append 5", "0 ok append [5, 0]", "1 invoke read null", "1 ok read []"),
    "unique-ids": ("0 invoke generate null", "0 ok generate 7", "1 invoke generate null", "1 ok generate 7"),
    "kv": ("0 invoke put \"a\"", "0 ok put \"a\"", "1 invoke get null", "1 ok get \"b\""),
}  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_small_models_mark_the_wrong_answer_and_say_what_was_right(model: str) -> None:
    lines = drawn(witness_of(model, *MODELS[model]))
    assert sum(line.endswith("╡ ✗") for line in lines) == 1
    assert any(line.startswith("  Right would have been: ") for line in lines)


def test_a_cycle_of_transactions_goes_edge_by_edge_back_to_where_it_began() -> None:
    lines = drawn(
        witness_of(
            "list-append",
            '0 invoke txn [["append", "x", 1], ["r", "y", null]]',
            '1 invoke txn [["append", "y", 1], ["r", "x", null]]',
            '0 ok txn [["append", "x", 1], ["r", "y", []]]',
            '1 ok txn [["append", "y", 1], ["r", "x", []]]',
            '2 invoke txn [["r", "x", null], ["r", "y", null]]',
            '2 ok txn [["r", "x", [1]], ["r", "y", [1]]]',
        )
    )
    text = "\n".join(lines)
    assert lines[0] == "  write skew (G2-item)"
    assert lines[1].startswith("  ┌─▸ T") and lines[-3].startswith("  └────┘")
    assert "rw, key x: T2 read x as []" in text
    assert "append x 1\n  │        read y []" in text


def test_sends_and_polls_of_kafka_are_put_side_by_side_by_offset() -> None:
    lines = drawn(
        witness_of(
            "kafka",
            *('0 invoke send [["send", 0, 1]]', '0 ok send [["send", 0, [5, 1]]]'),
            *('0 invoke send [["send", 0, 2]]', '0 ok send [["send", 0, [6, 2]]]'),
            *('0 invoke send [["send", 0, 3]]', '0 ok send [["send", 0, [7, 3]]]'),
            *('1 invoke poll [["poll"]]', '1 ok poll [["poll", {"0": [[5, 1], [7, 3]]}]]'),
        )
    )
    rows = [line.split() for line in lines]
    assert ["6", "2", "A", "no", "consumer"] in rows
    assert ["7", "3", "B"] in rows


ROWS = [
    {"table": "log", "node": "n1", "copy": 3, "offset": 7, "epoch": 2, "checksum": 1, "key": "k0", "value": 5},
    {"table": "log", "node": "n2", "copy": 3, "offset": 7, "epoch": 3, "checksum": 2, "key": "k0", "value": 6},
    {"table": "trace", "node": "n1", "seq": 4, "event": "vote", "epoch": 3, "peer": "n2", "offset": None},
    {"table": "something new", "who": "n9", "how_much": 4},
]


def test_entries_of_logs_stand_side_by_side_and_rows_of_any_kind_in_a_table() -> None:
    facts = {"epoch": 3, "held_by": ["n1", "n2"], "key": "k1"}
    lines = drawn({"kind": "G-nonadjacent", "summary": "", "rows": ROWS, "facts": facts})
    assert "long fork (G-nonadjacent), key k1" in lines[0]
    [entry] = [line for line in lines if line.strip().startswith("7 ")]
    assert entry.count("≠ epoch") == 2
    text = "\n".join(lines)
    for part in ("vote", "n9", "how much", "held by: n1 and n2"):
        assert part in text


def test_nothing_is_wider_than_ordered_and_ascii_is_ascii() -> None:
    kinds = [witness_of(model, *lines) for model, lines in MODELS.items()]
    kinds += [witness_of("register", *STALE), {"kind": "log matching", "rows": ROWS, "facts": {}}]
    for witness in kinds:
        for width in (80, 120):
            assert max(map(len, drawn(witness, width))) <= width
        assert all(line.isascii() for line in drawn(witness, plain=True))


def test_more_operations_than_fit_are_written_in_lines() -> None:
    lines = [line for i in range(60) for line in (f"{i} invoke write {i}", f"{i} ok write {i}")]
    lines_drawn = drawn(witness_of("register", *lines, "99 invoke read null", "99 ok read 0"))
    assert max(map(len, lines_drawn)) <= 80
    assert any("read 0" in line and "✗" in line for line in lines_drawn)


def test_where_there_is_no_terminal_there_is_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    show_witness(witness_in(witness_of("register", *STALE)), file=out)
    assert "\x1b" not in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 80


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FACTS = (
    "states_before",
    "order",
    "letters",
    "culprit",
    "why",
    "expected",
    "cycle",
    "transactions",
    "length",
    "key",
    "x",
)


@given(
    facts=st.dictionaries(st.sampled_from(FACTS), json_values),
    events=st.lists(
        st.fixed_dictionaries(
            {"index": st.integers(0, 9), "process": st.integers(0, 3), "type": st.integers(0, 3)},
            optional={"f": st.text(max_size=9), "payload": st.text(max_size=9), "value": json_values},
        ),
        max_size=6,
    ),
    rows=st.lists(st.dictionaries(st.sampled_from(["table", "node", "offset", "copy"]), json_values), max_size=3),
)  # fmt: skip
def test_every_witness_is_drawn(facts: Any, events: Any, rows: Any) -> None:
    drawn({"kind": "k", "summary": "s", "facts": facts, "events": events, "rows": rows})


@needs_shared
def test_recorded_violations_fit_eighty_columns() -> None:
    verdict = judge_as(read_any(SHARED / "etcd" / "etcd_000.log"), Ask("cas-register"), Budget())
    lines = drawn(verdict.witnesses[0].to_json())
    assert max(map(len, lines)) <= 80
    assert sum(line.endswith("╡ ✗") for line in lines) == 1


def test_two_reads_of_one_list_show_where_they_differ_and_count_what_is_equal() -> None:
    equal = list(range(100, 130))
    lines = drawn(
        witness_of(
            "list-append",
            *(
                line
                for v in [*equal, 3290]
                for line in (f'0 invoke txn [["append", 9, {v}]]', f'0 ok txn [["append", 9, {v}]]')
            ),
            '1 invoke txn [["r", 9, null], ["append", 9, 3455], ["r", 9, null]]',
            f'1 ok txn [["r", 9, {[*equal, 3290]}], ["append", 9, 3455], ["r", 9, {[*equal, 3455]}]]',
        )
    )
    text = " ".join(line.strip() for line in lines)
    assert "read 9 [… 28 equal …, 128, 129, ~~3290~~, 3455]" in text
