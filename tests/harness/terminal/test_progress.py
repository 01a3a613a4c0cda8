"""The lines of a running test: whole words, the time within its limit, faults and heals with their time.

A run goes on when the reader of its output has gone.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.cli.ending import print_checkers, show_to_do
from harness.spec import Spec
from harness.story.headline import verdict_in_words
from harness.terminal.progress import LastingConsole, Progress, wrapped
from tests.support.records_of_runs import header_of, results_in

S = 1_000_000_000


def console(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width, soft_wrap=True)


def printed(of: Console) -> str:
    assert isinstance(of.file, io.StringIO)
    return of.file.getvalue()


def test_words_are_broken_between_words_and_go_on_below() -> None:
    text = "the log of n2 ends before offset 140, where n5 still holds the committed entry"
    lines = wrapped(text, 40, "  valid  ").splitlines()
    assert max(map(len, lines)) <= 40
    assert " ".join(line.strip() for line in lines) == f"valid  {text}"
    assert all(line.startswith("         ") for line in lines[1:])
    assert wrapped("/a/" + "long" * 40, 40).count("\n") == 0, "a path stays whole, to be copied"


def test_faults_and_heals_are_shown_once_with_their_time() -> None:
    out = console()
    progress = Progress(out)
    for injected, healed in ((-1, -1), (4.6, -1), (4.6, -1), (4.6, 14.7), (4.6, 14.7)):
        times = [round(t * S) if t >= 0 else -1 for t in (injected, healed)]
        progress.fault(1, "n3 and c1 cut from the others", *times)
    progress.skipped(2, "power leader", "no node led", 15 * S)
    assert [line.split("  ", 2)[-1].strip() for line in printed(out).splitlines()] == [
        "4.6 s  fault 1: n3 and c1 cut from the others",
        "14.7 s  fault 1 healed",
        "15.0 s  card 2 skipped: power leader: no node led",
    ]


def test_a_running_phase_shows_its_time_within_the_limit() -> None:
    out = console()
    progress = Progress(out)
    progress.phase("main")
    progress._printed_s -= 60.0
    progress._began -= 26.0
    progress.running(200.0, 3, "n1 leads epoch 2", limit_s=60.0)
    assert "main · 34 s left, 200 operations/s, 3 of unknown outcome · n1 leads epoch 2" in printed(out)


def test_each_kind_of_violation_is_one_line_with_the_time_of_the_first() -> None:
    out = console(90)
    progress = Progress(out)
    for i in range(9):
        progress.violation("linearizability", ("stale read", "G0-realtime")[i % 2], i * S)
    assert [line.strip() for line in printed(out).splitlines()] == [
        "0.0 s  violated: stale read (linearizability)",
        "1.0 s  violated: acknowledged append lost (G0-realtime) (linearizability)",
    ]


def test_what_is_printed_after_the_reader_has_gone_goes_nowhere() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        console = LastingConsole(file=stream)
        console.print("first")
        stream.flush()
        assert os.read(reading, 100) == b"first\n"
        os.close(reading)
        console.print("second")
        stream.flush()
        console.print("third")
        print("of another writer", file=stream, flush=True)
        assert os.fstat(stream.fileno()).st_rdev == Path(os.devnull).stat().st_rdev


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
