"""Splitting, judging and combining: a failure in a part makes it unknown, and never hides or stops anything else.

A checker's result is kept only if it is a verdict that can be serialized and has evidence.

The rows of a clean run that the mutation check falsifies: only those on which the verdict must depend.

A task that never ends is unknown, whether it hangs in Python or in a compiled kernel.

A whole run is judged in parts: no reader of its history is ever handed more rows than a part has.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from histories import Script, write_stream
from journals import write_journal
from toy_quorum import Quorum
from waiting import PATIENCE_S

from bench.big_run import UNDECIDED, VIOLATED
from bench.instruments.big_history import write_run, write_tables
from checkers import judging
from checkers.base.checker import Budget, Checker, OutOfTime, Part, Task, judge_task, within
from checkers.base.history import Type
from checkers.base.results import as_object, parse_results, read_results, write_results
from checkers.base.stored_run import Demands, StoredRun
from checkers.base.verdict import Validity, Verdict, Witness
from checkers.catalog import select
from checkers.judging import Verdicts, judge_run, results_of, set_aside_unrecovered
from checkers.kernels.jit import kernel
from checkers.registers.checker import LINEARIZABILITY
from checkers.run_quality.history_figures import STATISTICS
from checkers.sealing import seal as sealing
from checkers.sealing import sealed_history, walk
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
    assert ("before the system had recovered, so the answer may be old: they differ" in verdicts["mine"].reason) == (
        validity is Validity.UNKNOWN
    )


MINE = Checker("mine", "Mine", "Is it?", lambda run: [Part(("part",))], lambda part, budget: 0, lambda run, found: None)  # type: ignore[arg-type,return-value]
OTHER = replace(MINE, name="other", combine=lambda run, found: Verdict(Validity.VALID, {"rows": 1}))


def judged(returned: Any, **changes: Any) -> dict[str, Any]:
    """Return the results of a run that this checker and a correct one judge; they can be written to a file."""
    mine = replace(MINE, combine=lambda run, found: returned, **changes)
    return json.loads(json.dumps(as_object(results_of(judge_run(StoredRun(Path("nowhere")), [mine, OTHER])))))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        pytest.param(None, "mine returned None, which is no Verdict", id="nothing"),
        pytest.param("valid", "mine returned 'valid', which is no Verdict", id="a word"),
        pytest.param(Verdict(Validity.VALID, {"rows": object()}), "neither a number nor words", id="an object"),
        pytest.param(Verdict(Validity.VALID, {"rows": float("nan")}), "neither a number nor words", id="no number"),
        pytest.param(Verdict(Validity.VALID, {1: 1}), "has the key 1, which is no text", id="a key"),  # type: ignore[dict-item]
        pytest.param(Verdict(Validity.VALID, 7), "its looked_at is 7", id="no mapping"),  # type: ignore[arg-type]
        pytest.param(Verdict(Validity.VALID, {"rows": 1}, details={"x": {1, 2}}), "written as JSON", id="details"),
        pytest.param(
            Verdict(Validity.INVALID, {"rows": b"1"}, witnesses=(Witness("wrong", "It is wrong."),)),  # type: ignore[dict-item]
            "mine returned invalid, but 'rows' in its looked_at",
            id="a violation",
        ),
    ],
)
def test_what_is_no_verdict_is_unknown_and_the_others_are_judged(returned: Any, words: str) -> None:
    results = judged(returned)
    assert results["checkers"]["mine"]["verdict"] == "unknown"
    assert words in results["checkers"]["mine"]["reason"]
    assert results["checkers"]["mine"]["reason"].startswith("mine returned")
    assert (results["verdict"], results["checkers"]["other"]["verdict"]) == ("unknown", "valid")


@pytest.mark.parametrize("looked_at", [{}, {"answers": 0}, {"answers": 0, "share": 0.0, "at": ""}])
def test_a_checker_that_looked_at_nothing_is_not_valid(looked_at: dict[str, Any]) -> None:
    mine = judged(Verdict(Validity.VALID, looked_at))["checkers"]["mine"]
    assert (mine["verdict"], mine["looked_at"]) == ("unknown", looked_at)
    assert "mine returned valid, but it looked at nothing" in mine["reason"]


def test_a_checker_that_looked_at_anything_or_judges_the_test_itself_is_valid() -> None:
    assert judged(Verdict(Validity.VALID, {"answers": 0, "writes": 1}))["verdict"] == "valid"
    assert judged(Verdict(Validity.VALID, {"log": "n1"}))["verdict"] == "valid"
    assert judged(Verdict(Validity.VALID, {"deaths": 0}), about_the_run=True)["verdict"] == "valid"


def test_a_run_whose_clients_no_checker_could_judge_is_unknown() -> None:
    nothing = Verdict(Validity.NOT_APPLICABLE, reason="there are no transactions")
    results = judged(nothing, needs=frozenset({"history", "model"}))
    assert (results["verdict"], results["exit_code"]) == ("unknown", 2)
    assert results["summary"] == "no checker judged what clients saw, so the verdict is unknown"
    assert judged(nothing)["verdict"] == "valid", "a checker that is applied to every run may be not applicable"


def test_a_need_that_nothing_offers_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"checker mine needs 'histroy', which nothing offers \(known: history, logs"):
        replace(MINE, needs=frozenset({"histroy"}))  # type: ignore[arg-type]


def clean_run() -> judging.Evidence:
    """Three writes of one key, each read."""
    quorum = Quorum()
    quorum.elect("n1")
    for _ in range(3):
        quorum.write("k0")
    found = quorum.evidence()
    reads = [row | {"f": "read", "process": 50 + row["process"], "index": 100 + row["index"]} for row in found.history]
    found.history += reads
    return judging.Evidence(found.history, found.logs, found.traces, found.copies)


def writes(evidence: judging.Evidence, kind: Type) -> list[dict[str, Any]]:
    return [row for row in evidence.history if row["f"] == "write" and row["type"] == kind]


@pytest.mark.parametrize(
    "mutate",
    [judging.acknowledged_write_that_failed, judging.answer_from_the_past, judging.logged_value_never_written],
)
def test_a_value_that_two_writes_wrote_is_left_as_it_is(mutate: judging.Mutate) -> None:
    assert mutate(clean_run(), Random(1)) is not None
    evidence = clean_run()
    invoked = writes(evidence, Type.INVOKE)
    evidence.history += [row | {"index": 10_000 + row["index"], "process": 99} for row in invoked]
    assert mutate(evidence, Random(1)) is None


def test_the_value_of_another_key_does_not_count(seed: int = 1) -> None:
    evidence = clean_run()
    evidence.history += [row | {"key": "another", "process": 99} for row in writes(evidence, Type.INVOKE)]
    changed = judging.logged_value_never_written(evidence, Random(seed))
    assert changed is not None and changed["value"] == judging.NEVER_WRITTEN


@kernel
def long_walk(steps: int) -> np.uint64:
    """A walk whose end depends on every step, so that the compiler cannot shorten it."""
    at = np.uint64(1)
    for _ in range(steps):
        at = at * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    return at


def test_a_walk_in_python_is_given_up_and_its_thread_ends() -> None:
    threads: list[threading.Thread] = []

    def endless(part: Part, budget: Budget) -> None:
        threads.append(threading.current_thread())
        while True:
            threading.Event().wait(0.01)

    judged = judge_task(Task(endless, Part(("endless.edn",)), Budget(wall_s=0.1)))
    assert judged.finding is None
    assert judged.failure.startswith("endless.edn: judging took longer than 0.1 s")
    threads[0].join(PATIENCE_S)
    assert not threads[0].is_alive()


def test_a_kernel_that_hangs_is_given_up() -> None:
    long_walk(1)  # compiled before the time limit starts
    with pytest.raises(OutOfTime):
        within(0.05, lambda: long_walk(1_000_000_000))


EVENTS = 42_000
ROWS_PER_GROUP, ROWS_AT_ONCE = 512, 4_096

CHECKERS = select({"history", "logs", "traces", "nodes", "unique-values", "client-records"}, ("linearizability",))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that bounds memory, made so small that the run has many of each."""
    monkeypatch.setattr(sealing, "ROWS_PER_GROUP", ROWS_PER_GROUP)
    monkeypatch.setattr(walk, "ROWS_PER_CHUNK", 4 * ROWS_PER_GROUP)
    monkeypatch.setattr(sealing, "ROWS_PER_CHUNK", 4 * ROWS_PER_GROUP)
    monkeypatch.setattr(sealed_history, "GROUPS_PER_CHUNK", 4)


@pytest.fixture
def most_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows of a history each reading returned."""
    seen: list[int] = []
    init = pq.ParquetFile.__init__

    def remember(self: Any, source: Any, *rest: Any, **named: Any) -> None:
        self.of_history = Path(str(source)).name == "history.parquet"
        init(self, source, *rest, **named)

    def counted(read: Callable[..., pa.Table]) -> Callable[..., pa.Table]:
        def counting(self: Any, *rest: Any, **named: Any) -> pa.Table:
            table = read(self, *rest, **named)
            seen.extend([len(table)] if self.of_history else [])
            return table

        return counting

    monkeypatch.setattr(pq.ParquetFile, "__init__", remember)
    for name in ("read", "read_row_group", "read_row_groups"):
        monkeypatch.setattr(pq.ParquetFile, name, counted(getattr(pq.ParquetFile, name)))
    whole = pq.read_table

    def read_table(source: Any, *rest: Any, **named: Any) -> pa.Table:
        table = whole(source, *rest, **named)
        seen.extend([len(table)] if Path(str(source)).name == "history.parquet" else [])
        return table

    monkeypatch.setattr(pq, "read_table", read_table)
    return seen


@pytest.mark.parametrize("wrong", [False, True])
def test_no_checker_holds_the_history(wrong: bool, tmp_path: Path, small_parts: None, most_rows: list[int]) -> None:
    """Of a valid run; and of one with a stale read and a lost write, whose witnesses are looked for as well."""
    folder = tmp_path / "run"
    demands: Demands = write_run(folder, EVENTS, wrong)
    write_tables(folder)
    seal(folder)
    verdicts = judge_run(StoredRun(folder, demands), CHECKERS)
    found = {name for name, verdict in verdicts.items() if verdict.validity is Validity.INVALID}
    assert found == (VIOLATED if wrong else set())
    reasons = {name: verdict.reason for name, verdict in verdicts.items() if verdict.validity is Validity.UNKNOWN}
    assert reasons.keys() == (UNDECIDED if wrong else set()), reasons
    assert len(most_rows) > 20
    assert max(most_rows) <= ROWS_AT_ONCE < EVENTS // 10
