"""The verdict in words, and how figures and hostile text are worded."""

from __future__ import annotations

from typing import Any

import pytest

from checkers.record.header_and_outcome import RunOutcome
from harness import plain_words as words
from harness.judge.judge_run import demand
from harness.story import headline as bugs
from harness.story.headline import notes, planted, verdict_in_words
from system_under_test.subject import Bug
from tests.support.records_of_runs import header_of, outcome_of, results_in

BUG = Bug("stale-read", "…", "linearizability", ("stale read",))


@pytest.fixture
def knows_the_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bugs, "known_bug", lambda subject, name: BUG if name == BUG.name else None)


def results(verdict: str, **checkers: dict[str, Any]) -> dict[str, Any]:
    return {"verdict": verdict, "checkers": {k.replace("_", "-"): v for k, v in checkers.items()}}


def invalid(kind: str, summary: str = "At 3.1 s n1 answered 4") -> dict[str, Any]:
    return {"verdict": "invalid", "witness": [{"kind": kind, "summary": summary}]}


VALID = {"verdict": "valid", "looked_at": {"operations": 11873, "keys": 10}}


def never_in_force(verdict: str, *kinds: dict[str, Any]) -> dict[str, Any]:
    vacuity = {"verdict": verdict, "reason": "ok operations: 1", "details": {"never_in_force": list(kinds)}}
    return results(verdict, linearizability=VALID, vacuity=vacuity)


POWER = {"kind": "power", "dealt": 1, "reasons": ["n2 fsynced nothing for 4 s"]}
DISK, CLOCK = ({"kind": kind, "dealt": 0, "reasons": []} for kind in ("disk", "clock"))


NOTHING_WRONG = "2 checkers looked and found nothing wrong in 11,873 operations on 10 keys."
LOST = "A committed entry was lost: the log of n1 has no entry at offset 4."
UNKNOWN = "ok writes in faults: got 0, wanted at least 1"


@pytest.mark.parametrize(
    ("judged", "written"),
    [
        (results("valid", linearizability=VALID, vacuity={"verdict": "valid"}), f"Valid: {NOTHING_WRONG}"),
        (
            never_in_force("valid", POWER),
            f"Valid, but power was never in force: {NOTHING_WRONG} "
            "1 fault of kind power was dealt and was not in force: n2 fsynced nothing for 4 s.",
        ),
        (
            never_in_force("valid", CLOCK, DISK, POWER),
            f"Valid, but clock, disk and power were never in force: {NOTHING_WRONG} The time was too short to deal "
            "clock and disk. 1 fault of kind power was dealt and was not in force: n2 fsynced nothing for 4 s.",
        ),
        (results("invalid", linearizability=invalid("stale read")), "Invalid: at 3.1 s n1 answered 4."),
        # An article is no name behind a colon.
        (results("invalid", never_lost=invalid("entry lost", LOST)), f"Invalid: a{LOST[1:]}"),
        # Violations of several checkers are not added up.
        (
            results("invalid", linearizability=invalid("stale read"), log_matching=invalid("logs differ")),
            "Invalid: at 3.1 s n1 answered 4. 2 checkers found 2 kinds of violations.",
        ),
        (
            results("unknown", linearizability=VALID, vacuity={"verdict": "unknown", "reason": UNKNOWN}),
            f"Unknown: {UNKNOWN}.",
        ),
        ({}, "Unknown: this run has not been judged."),
    ],
)
def test_a_verdict_says_how_much_was_looked_at_and_what_broke(judged: dict[str, Any], written: str) -> None:
    assert verdict_in_words(results_in(judged), None) == written


def test_another_verdict_has_the_kinds_that_were_never_in_force_among_its_notes() -> None:
    unknown = never_in_force("unknown", DISK, {"kind": "power", "dealt": 2, "reasons": []})
    assert "never in force" not in verdict_in_words(results_in(unknown), None)
    assert notes(results_in(unknown), RunOutcome()) == [
        "These kinds of fault were never in force: disk and power. The time was too short to deal disk. "
        "2 faults of kind power were dealt and none was in force: no reason is recorded."
    ]
    assert notes(results_in(never_in_force("valid", DISK)), RunOutcome()) == [], "the first line says it already"


def test_a_function_that_was_never_invoked_is_among_the_notes() -> None:
    vacuity = {"verdict": "valid", "details": {"never_invoked": ["cas", "write"]}}
    written = notes(results_in(results("valid", vacuity=vacuity)), RunOutcome())
    assert written == ["The workload states cas and write, but no client invoked them."]


@pytest.mark.usefixtures("knows_the_bug")
@pytest.mark.parametrize(
    ("found", "checkers", "ends"),
    [
        (True, {"linearizability": invalid("stale read")}, "Planted bug stale-read: found by linearizability."),
        (False, {"linearizability": VALID}, "not found by linearizability. Linearizability is valid."),
        (
            False,
            {"linearizability": invalid("order cycle")},
            "Linearizability found only order cycle, where stale read would count.",
        ),
        (False, {"log_matching": invalid("x"), "linearizability": VALID}, "Linearizability is valid."),
    ],
)
def test_a_planted_bug_is_found_only_for_the_right_reason(found: bool, checkers: dict[str, Any], ends: str) -> None:
    verdict = "invalid" if any(c["verdict"] == "invalid" for c in checkers.values()) else "valid"
    test = header_of({"spec": {"subject": "kraft", "bug": "stale-read"}})
    judged = demand(BUG, results_in(results(verdict, **checkers)))
    decided = planted(judged, test)
    assert decided is not None and decided.found is found and decided.does == BUG.summary
    assert verdict_in_words(judged, test).endswith(ends)


def test_long_or_hostile_text_becomes_one_short_line() -> None:
    written = words.shorten("a\n\x1b[31m\u202eb\ud800" + "x" * 100_000)
    assert len(written) == words.LONGEST and written.startswith("a [31m b ") and written.endswith("…")


def test_what_the_harness_could_not_keep_up_with_is_said() -> None:
    outcome = {
        "interrupted": True,
        "scheduled_rate_hz": 200,
        "achieved_rate_hz": 120.0,
        "loop_stalls": [{"time_ns": 1, "stall_ms": 800}],
        "steal_s": {"n1": 2.0, "n2": 0.1},
    }
    written = " ".join(notes(results_in({}), outcome_of(outcome)))
    for part in (
        "interrupted",
        "120 of the 200 scheduled operations per second",
        "stalled once, for up to 800 ms",
        "n1 2.0 s",
    ):
        assert part in written
    assert notes(results_in({}), RunOutcome(scheduled_rate_hz=200, achieved_rate_hz=190.0)) == []


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"copies of logs": 1, "batches": 1, "criteria": 1}, "1 copy of logs, 1 batch, 1 criterion"),
        ({"epochs with a leader": 1, "passes": 1, "met": 1}, "1 epoch with a leader, 1 pass, 1 met"),
        ({"copies": 2, "nodes": 1, "longest_gap_s": 1.2}, "2 copies, 1 node, longest gap 1.2 s"),
        ({"size_bytes": 2048, "seconds": 0.94, "limit in seconds": 60}, "size 2,048 bytes, 0.94 s, limit 60 s"),
    ],
)
def test_one_thing_is_named_as_one_and_figures_carry_their_units(figures: dict[str, Any], said: str) -> None:
    assert words.looked_at(figures) == said


def test_the_first_sentence_ends_at_no_dots_of_a_list() -> None:
    assert words.opening("T1 read k9 as [... 5, 6], and T2 did not. Two checkers found it.") == (
        "T1 read k9 as [... 5, 6], and T2 did not",
        "Two checkers found it.",
    )
    assert words.opening("At 7.582 s n1 answered.") == ("At 7.582 s n1 answered", "")
    assert words.opening("no end") == ("no end", "")


def test_a_moment_just_before_the_beginning_has_no_minus() -> None:
    assert (words.seconds(-100), words.seconds(-1_500_000)) == ("0.000 s", "-0.002 s")
