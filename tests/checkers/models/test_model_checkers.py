"""The interface for models: each judges a sealed run as a checker of the catalog, correct and falsified."""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from edn_files import operations, read_bytes
from histories import write_stream
from simulated_objects import one_process, renumbered

from checkers.base.checker import Budget
from checkers.base.history import Event, Type
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.by_hand import judge_events
from checkers.catalog import BY_MODEL, select
from checkers.judging import judge_run
from checkers.models import checker as model_checker
from checkers.models.each_object import KNOWN
from checkers.sealing.seal import seal

RIGHT_AND_SPOILED: dict[str, tuple[str, str, str]] = {
    "kv": (
        'put "a"->"a"; append "b"->"b"; get ->"ab"', 'put "a"->"a"; append "b"->"b"; get ->"a"', "no order"
    ),
    "queue": (
        "enqueue 1->1; enqueue 2->2; dequeue ->1; drain ->[2]",
        "enqueue 1->1; enqueue 2->2; dequeue ->2; drain ->[]",
        "acknowledged element lost",
    ),
    "at-least-once-queue": (
        "enqueue 1->1; enqueue 2->2; dequeue ->2; dequeue ->2; drain ->[2 1]",
        "enqueue 1->1; enqueue 2->2; dequeue ->2; dequeue ->2; drain ->[2]",
        "acknowledged element lost",
    ),
    "stack": (
        "push 1->1; push 2->2; pop ->2; pop ->1; pop ->nil", "push 1->1; push 2->2; pop ->2; pop ->2", "duplicate"
    ),
    "priority-queue": (
        "insert 2->2; insert 1->1; extract-min ->1; extract-min ->2",
        "insert 2->2; insert 1->1; extract-min ->2",
        "out of order",
    ),
    "set": ("add 1->1; add 2->2; read ->[1 2]", "add 1->1; add 2->2; read ->[2]", "acknowledged element lost"),
    "counter": ("add 3->3; dec 1->1; read ->2", "add 3->3; dec 1->1; read ->3", "impossible sum"),
    "mutex": ("acquire ->nil; release ->nil; acquire ->nil", "acquire ->nil; acquire ->nil", "no order"),
    "leased-lock": ("acquire ->0; acquire ->2000", "acquire ->2000; acquire ->2000", "no order"),
    "fenced-lock": (
        "acquire ->7; write 7->7; acquire ->8; write 8->8; release ->nil",
        "acquire ->7; acquire ->8; write 8->8; write 7->7",
        "stale token accepted",
    ),
    "bank": (
        'read ->[5 5]; transfer ["0" "1" 3]->["0" "1" 3]; read ->[2 8]',
        'read ->[5 5]; transfer ["0" "1" 3]->["0" "1" 3]; read ->[2 5]',
        "wrong total",
    ),
    "bank-overdraft": (
        'read ->{"a" 5 "b" 5}; transfer ["a" "b" 7]->["a" "b" 7]; read ->{"a" -2 "b" 12}',
        'read ->{"a" 5 "b" 5}; read ->{"a" 10}',
        "other accounts",
    ),
    "long-fork": (
        'txn [[w x 1]]->[[w x 1]]; txn [[r x nil] [r y nil]]->[[r x 1] [r y nil]]; '
        'txn [[w y 1]]->[[w y 1]]; txn [[r x nil] [r y nil]]->[[r x 1] [r y 1]]',
        'txn [[w x 1]]->[[w x 1]]; txn [[w y 1]]->[[w y 1]]; '
        'txn [[r x nil] [r y nil]]->[[r x 1] [r y nil]]; txn [[r x nil] [r y nil]]->[[r x nil] [r y 1]]',
        "long fork",
    ),
    "append-log": (
        "append 5->[5 0]; append 6->[6 1]; read ->[5 6]",
        "append 5->[5 0]; append 6->[6 1]; read ->[6]",
        "two values at one offset",
    ),
    "unique-ids": ("generate ->1; generate ->2", "generate ->1; generate ->1", "duplicate"),
}  # fmt: skip


def events_of(name: str, script: str) -> list[Event]:
    """Operations of one process; those of a leased lock are of several."""
    read = read_bytes(operations(script).encode())
    return renumbered([replace(e, node="n1", process=e.process if name == "leased-lock" else 0) for e in read])


def on_two_keys(name: str, steps: str, others: str) -> list[Event]:
    """Return the first steps on key a, the others on key b, and a fault in between.  Only the others on an object that
    is the whole history.
    """
    if KNOWN[name].whole:
        return events_of(name, others)
    a = [replace(e, key="a") for e in events_of(name, steps)]
    b = [replace(e, key="b", process=e.process + 9) for e in events_of(name, others)]
    return renumbered([*a, Event(0, 0, -1, Type.INFO, "partition"), *b])


def judged(folder: Path, events: Sequence[Event], name: str) -> Verdict:
    write_stream(folder, list(events))
    seal(folder)
    chosen = [c for c in select({"history"}, {name}) if "model" in c.needs]
    assert [c.name for c in chosen] == [name]
    return judge_run(StoredRun(folder), chosen)[name]


def test_every_model_has_its_example_here() -> None:
    assert set(RIGHT_AND_SPOILED) == set(KNOWN)


@pytest.mark.parametrize("name", RIGHT_AND_SPOILED)
def test_a_run_is_judged_right_and_spoiled(name: str, tmp_path: Path) -> None:
    right, spoiled, kind = RIGHT_AND_SPOILED[name]
    clean = judged(tmp_path / "right", on_two_keys(name, right, right), name)
    assert clean.validity is Validity.VALID, clean.reason
    copies = 1 if KNOWN[name].whole else 2
    assert clean.looked_at["keys"] == copies
    assert clean.looked_at["operations"] == copies * right.count("->")
    events = on_two_keys(name, right, spoiled)
    wrong = judged(tmp_path / "spoiled", events, name)
    assert wrong.validity is Validity.INVALID
    assert [w.kind for w in wrong.witnesses] == [kind]
    assert wrong.looked_at["violations"] == 1
    assert wrong.witnesses[0].facts["key"] == (None if KNOWN[name].whole else "b")
    assert wrong.to_json() == judge_events(events, name).to_json(), "a run and a file have the same verdict"


@pytest.mark.parametrize("name", RIGHT_AND_SPOILED)
def test_a_run_in_which_nothing_was_answered_is_unknown(name: str, tmp_path: Path) -> None:
    invokes = [e for e in events_of(name, RIGHT_AND_SPOILED[name][0]) if e.type is Type.INVOKE][:1]
    verdict = judged(tmp_path, invokes, name)
    assert verdict.validity is Validity.UNKNOWN
    assert "answer" in verdict.reason


def test_parts_share_the_keys_between_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_checker, "EVENTS_PER_PART", 10)
    right, spoiled, _ = RIGHT_AND_SPOILED["set"]
    events: list[Event] = []
    for n in range(12):
        some = events_of("set", spoiled if n == 7 else right)
        events += [replace(e, key=f"k{n}", process=n) for e in some]
    events = renumbered(events)
    write_stream(tmp_path, events)
    seal(tmp_path)
    checker = BY_MODEL["set"]
    parts = checker.split(StoredRun(tmp_path))
    assert len(parts) > 3
    findings = [checker.judge(part, Budget()) for part in pickle.loads(pickle.dumps(parts))]
    assert sum(f.objects for f in findings) == 12
    assert checker.combine(StoredRun(tmp_path), findings).to_json() == judge_events(events, "set").to_json()


def test_an_operation_without_a_key_hides_in_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part that gets the rows without a key need not have a key of its own."""
    monkeypatch.setattr(model_checker, "EVENTS_PER_PART", 2)
    right, _, _ = RIGHT_AND_SPOILED["kv"]
    events = [replace(e, key="k0") for e in events_of("kv", right)]
    events += [replace(e, key=None, process=1) for e in events_of("kv", right)]
    seal(write_stream(tmp_path, renumbered(events)))
    checker = BY_MODEL["kv"]
    parts = checker.split(StoredRun(tmp_path))
    number = next(p.params["number"] for p in parts if zlib.crc32(b"k0") % p.params["count"] == p.params["number"])
    assert number > 0, "the key must not lie in the part of the rows without one"
    verdict = judge_run(StoredRun(tmp_path), [checker])["kv"]
    assert verdict.validity is Validity.UNKNOWN
    assert f"index {len(events) // 2}: this " in verdict.reason and "has no key" in verdict.reason


def test_a_part_beyond_its_bytes_is_unknown(tmp_path: Path) -> None:
    write_stream(tmp_path, events_of("set", RIGHT_AND_SPOILED["set"][0]))
    seal(tmp_path)
    checker = BY_MODEL["set"]
    [part] = checker.split(StoredRun(tmp_path))
    verdict = checker.combine(StoredRun(tmp_path), [checker.judge(part, Budget(size_bytes=100))])
    assert verdict.validity is Validity.UNKNOWN
    assert "the budget is 100 bytes" in verdict.reason


def test_a_set_counts_what_the_last_read_lacks(tmp_path: Path) -> None:
    steps = [*(("add", n, n) for n in range(5)), ("read", None, [0, 3])]
    verdict = judged(tmp_path, one_process(*steps), "set")
    assert "3 of 5 acknowledged elements are missing from the last read, such as" in verdict.witnesses[0].summary
    assert verdict.looked_at["missing_from_last_read"] == 3
    json.dumps(verdict.to_json())
