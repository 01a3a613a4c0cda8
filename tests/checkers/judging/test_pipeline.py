"""Splitting, judging and combining: a failure in a part makes it unknown, and never hides or stops anything else."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from histories import Script, write_stream
from journals import write_journal

from checkers.base.checker import Budget, Checker, Part
from checkers.base.results import as_object, parse_results, read_results, write_results
from checkers.base.stored_run import Demands, StoredRun
from checkers.base.verdict import Validity, Verdict, Witness
from checkers.judging.pipeline import Verdicts, judge_run, results_of, set_aside_unrecovered
from checkers.registers.checker import LINEARIZABILITY
from checkers.run_quality.statistics import STATISTICS
from checkers.sealing.seal import seal

FILES = StoredRun(Path("nowhere"))


def checker(
    judge: Callable[[Part, Budget], Any],
    parts: int = 3,
    combine: Callable[[StoredRun, Sequence[Any]], Verdict] | None = None,
    split: Callable[[StoredRun], Sequence[Part]] | None = None,
) -> Checker:
    """Return a checker of numbered parts that is valid if every part is."""

    def all_hold(files: StoredRun, findings: Sequence[Any]) -> Verdict:
        if all(findings):
            return Verdict(Validity.VALID, {"parts": len(findings)})
        return Verdict(Validity.INVALID, {"parts": len(findings)}, witnesses=(Witness("wrong", "a part is wrong"),))

    def numbered(files: StoredRun) -> list[Part]:
        return [Part((f"part-{n}",), {"n": n}) for n in range(parts)]

    return Checker("toy", "Toy", "Is it?", split or numbered, judge, combine or all_hold)


def verdict_on(toy: Checker) -> Verdict:
    return judge_run(FILES, [toy])["toy"]


def broken_at(n: int, how: Exception) -> Callable[[Part, Budget], bool]:
    def judge(part: Part, budget: Budget) -> bool:
        if part.params["n"] == n:
            raise how
        return True

    return judge


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (MemoryError(), "part-1: out of memory"),
        (ValueError("bad\nlong trace"), "part-1: ValueError: bad"),
        (FileNotFoundError(2, "No such file", "x.parquet"), "part-1: x.parquet is missing"),
        (KeyError(), "part-1: KeyError"),
    ],
)
def test_a_part_that_breaks_makes_the_verdict_unknown_with_its_reason(how: Exception, words: str) -> None:
    verdict = verdict_on(checker(broken_at(1, how)))
    assert verdict.validity is Validity.UNKNOWN
    assert verdict.reason == f"1 of 3 parts could not be judged: {words}"
    assert verdict.looked_at == {"parts": 2}


def test_a_violation_is_not_hidden_by_a_part_that_breaks() -> None:
    def judge(part: Part, budget: Budget) -> bool:
        if part.params["n"] == 0:
            raise MemoryError
        return part.params["n"] != 2

    verdict = verdict_on(checker(judge))
    assert verdict.validity is Validity.INVALID
    assert "out of memory" in verdict.reason


def test_nothing_is_combined_when_no_part_could_be_judged() -> None:
    def must_not_be_called(files: StoredRun, findings: Sequence[Any]) -> Verdict:
        raise AssertionError("called without findings")

    verdict = verdict_on(checker(broken_at(0, MemoryError()), parts=1, combine=must_not_be_called))
    assert verdict.reason == "1 of 1 parts could not be judged: part-0: out of memory"


def test_missing_input_is_unknown_wherever_it_is_missed() -> None:
    def no_file(*_: object) -> Any:
        raise FileNotFoundError(2, "No such file", "tables/copies.parquet")

    for toy in (checker(lambda p, b: True, split=no_file), checker(lambda p, b: True, combine=no_file)):
        verdict = verdict_on(toy)
        assert verdict.validity is Validity.UNKNOWN
        assert verdict.reason == "tables/copies.parquet is missing"


def test_a_checker_that_ends_python_is_unknown_and_ends_nothing() -> None:
    def ends(*_: object) -> Any:
        raise SystemExit(0)

    for toy in (checker(ends), checker(lambda p, b: True, split=ends), checker(lambda p, b: True, combine=ends)):
        verdict = verdict_on(toy)
        assert verdict.validity is Validity.UNKNOWN
        assert verdict.reason.endswith("SystemExit: 0")


def test_an_unsealed_run_is_unknown(tmp_path: Path) -> None:
    verdicts = judge_run(StoredRun(tmp_path), [LINEARIZABILITY, STATISTICS])
    assert {v.validity for v in verdicts.values()} == {Validity.UNKNOWN}
    assert all("not sealed" in v.reason for v in verdicts.values())


def test_a_bucket_beyond_the_budget_of_bytes_is_unknown_and_not_opened(tmp_path: Path) -> None:
    seal(write_stream(tmp_path, Script().invoke(0, "write", 1).ok(0).events))
    for bucket in (tmp_path / "buckets").glob("*.parquet"):
        data = bytearray(bucket.read_bytes())
        data[4:40] = b"x" * 36  # rows destroyed, footer intact: only a reader of the rows notices
        bucket.write_bytes(data)
    verdicts = judge_run(StoredRun(tmp_path), [LINEARIZABILITY], budget=Budget(size_bytes=10))
    assert verdicts["linearizability"].validity is Validity.UNKNOWN
    assert "budget is 10" in verdicts["linearizability"].reason


def test_results_json_is_what_the_readme_of_results_promises(tmp_path: Path) -> None:
    seal(write_stream(tmp_path, Script().invoke(0, "read").ok(0, 3).events))
    reports: list[str] = []
    verdicts = judge_run(StoredRun(tmp_path), [LINEARIZABILITY, STATISTICS], progress=reports.append)
    write_results(tmp_path, results_of(verdicts))
    results = as_object(results_of(verdicts))
    assert read_results(tmp_path) == parse_results(results)
    assert json.loads((tmp_path / "results.json").read_text()) == results
    assert (results["verdict"], results["exit_code"]) == ("invalid", 1)
    assert "Linearizability" in results["summary"]
    assert list(results["checkers"]) == ["linearizability", "statistics"]
    entry = results["checkers"]["linearizability"]
    assert entry["title"] == "Linearizability"
    assert entry["question"].endswith("?")
    assert entry["seconds"] > 0
    assert set(entry["witness"][0]) == {"kind", "summary", "events", "rows", "facts"}
    assert reports[-1] == "judged 1 of 1 parts"


def test_a_run_that_no_checker_could_read_is_no_pass() -> None:
    nothing = Verdict(Validity.NOT_APPLICABLE, reason="there is nothing")
    assert results_of({"toy": nothing}).verdict == "unknown"
    assert results_of({}).exit_code == 2
    held = Verdict(Validity.VALID, {"parts": 1})
    assert results_of({"toy": nothing, "other": held}).verdict == "valid"


@pytest.mark.parametrize(
    ("logs", "traces", "validity", "words"),
    [
        (False, True, Validity.NOT_APPLICABLE, "the system under test has no logs of this kind"),
        (True, False, Validity.NOT_APPLICABLE, "the system under test has no traces of this kind"),
        (True, True, Validity.UNKNOWN, "no node delivered logs, though the system under test has them"),
    ],
)
def test_a_checker_is_not_combined_without_the_files_of_nodes_that_it_needs(
    tmp_path: Path, logs: bool, traces: bool, validity: Validity, words: str
) -> None:
    toy = replace(checker(lambda part, budget: True), needs=frozenset({"logs", "traces"}))
    verdict = judge_run(StoredRun(tmp_path, Demands(logs=logs, traces=traces)), [toy])["toy"]
    assert (verdict.validity, verdict.reason) == (validity, words)


@pytest.mark.parametrize(
    ("kind", "recovered", "validity"),
    [
        ("servers that differ", False, Validity.UNKNOWN),
        ("servers that differ", True, Validity.INVALID),
        ("value from nowhere", False, Validity.INVALID),
    ],
)
def test_what_only_reads_of_an_unrecovered_system_show_is_unknown(
    tmp_path: Path, kind: str, recovered: bool, validity: Validity
) -> None:
    reading = {"name": "final reads", "start_ns": 1, "end_ns": 2, "first_row": 10}
    write_journal(tmp_path, outcome={"phases": [reading], "recovery": {"recovered": recovered}})
    verdicts = Verdicts()
    verdicts["mine"] = Verdict(
        Validity.INVALID, {"reads": 1}, witnesses=(Witness(kind, "they differ", ({"index": 12},)),)
    )
    verdicts["early"] = Verdict(Validity.INVALID, {"reads": 1}, witnesses=(Witness(kind, "stale", ({"index": 9},)),))
    set_aside_unrecovered(verdicts, StoredRun(tmp_path).outcome)
    assert (verdicts["mine"].validity, verdicts["early"].validity) == (validity, Validity.INVALID)
    assert ("had not recovered, so it may have been old: they differ" in verdicts["mine"].reason) == (
        validity is Validity.UNKNOWN
    )
