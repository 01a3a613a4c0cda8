"""What an unknown run lacked, in the terminal: a line each, and commands that can be copied."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from harness.cli.ending import print_checkers, show_to_do
from harness.spec import Spec
from harness.story.headline import verdict_in_words
from tests.support.records_of_runs import header_of
from tests.support.results_of_runs import results_in


def shown(results: dict[str, Any], said: str = "") -> str:
    out = io.StringIO()
    test = header_of({"rerun": "make test-partition SEED=7", "spec": Spec(seed=7).to_json()})
    show_to_do(Console(file=out, width=80), results_in(results), test, "results/a-run", said)
    return out.getvalue()


def test_each_shortfall_has_its_figures_and_each_command_stands_once_on_a_line_of_its_own() -> None:
    criteria = [
        {"name": "share of the scheduled rate", "value": 0.5, "least": 0.8, "met": False, "words": "98 of 200"},
        {"name": "harness kept up", "value": 0, "least": 1, "met": False, "words": "2 stalls"},
        {"name": "ok operations", "value": 900, "least": 10, "met": True, "words": "of 2,000"},
    ]
    vacuity = {"verdict": "unknown", "details": {"criteria": criteria}}
    text = shown({"verdict": "unknown", "checkers": {"vacuity": vacuity}})
    assert "  - share of the scheduled rate: wanted at least 80 %, got 50 %. 98 of 200." in text
    assert "  - harness kept up: wanted yes, got no. 2 stalls." in text and "ok operations" not in text
    assert text.count("    make test-partition SEED=7 RATE=100\n") == 1


def test_the_figures_of_the_headline_are_not_said_again() -> None:
    short = "keys read at the end: got 3, wanted at least 5"
    criterion = {"name": "keys read at the end", "value": 3, "least": 5, "met": False, "words": "of 10 keys"}
    vacuity = {"verdict": "unknown", "reason": short, "details": {"criteria": [criterion]}}
    run = {"verdict": "unknown", "checkers": {"vacuity": vacuity}}
    said = verdict_in_words(results_in(run), None)
    assert short in said and "  - keys read at the end: of 10 keys." in shown(run, said)
    out = io.StringIO()
    print_checkers(Console(file=out, width=200), results_in(run), 200, False, said)
    assert "vacuity" in out.getvalue() and "got 3" not in out.getvalue()


def test_a_planted_bug_that_was_not_found_is_said_once() -> None:
    decided = {"bug": "no-fsync", "found": False, "reason": ""}
    said = verdict_in_words(results_in({"verdict": "unknown", "checkers": {}, "planted": decided}), None)
    assert said == "Unknown: planted bug no-fsync: not found."


def test_a_long_reason_is_never_cut_short() -> None:
    reason = "; ".join(f"link n{i} to n{i + 1}: not proven for {i}.5 s" for i in range(40))
    text = shown({"verdict": "unknown", "checkers": {"evidence": {"verdict": "unknown", "reason": reason}}})
    assert "…" not in text and text.count("  - ") == 40


def test_other_verdicts_have_nothing_to_do() -> None:
    assert shown({"verdict": "valid", "checkers": {}}) == ""
