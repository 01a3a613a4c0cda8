"""A model, a function and a checker that a workload declares by value: the violations each finds, and how it is
refused.

A user's model that forgets to refuse would explain every answer, so its first such step is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from edn_files import judged_text, operations
from journals import write_journal

from checkers.base.checker import Budget, Judged, Part, Task
from checkers.base.columns import HISTORY
from checkers.base.history import Type
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.catalog import CATALOG, named_but_lacking, select, wrong_names
from checkers.judging import judge_run
from checkers.models.checker import SeenByClients
from checkers.models.checker import own_checker_of as checker_of
from checkers.models.model import REFUSED, Model, Operation, State

FINAL_NS = 1_000


def highest(state: State, operation: Operation) -> object:
    after = max(state, operation.input) if operation.f == "put" else state  # type: ignore[type-var]
    return REFUSED if operation.returned and operation.output != after else after


MODEL = Model("highest-value", init=lambda: 0, step=highest, observers=frozenset({"highest"}))


def reads_are_even(seen: SeenByClients) -> Iterator[tuple[str, Sequence[Operation]]]:
    """Is every value that was read even?

    Only the first line is the question."""
    for operation in seen.operations:
        if operation.f == "highest" and operation.returned and int(str(operation.output)) % 2:
            yield f"a read of {operation.key} was odd", [operation]


def final_is(seen: SeenByClients) -> Iterator[str]:
    if [operation.f for operation in seen.final] != ["highest"] or len(seen.main) + 1 != len(seen.operations):
        yield "there is one read at the end"


def needs_two_final_reads(seen: SeenByClients) -> Iterator[tuple[Validity, str]]:
    if len(seen.final) < 2:
        yield Validity.UNKNOWN, "one final read shows no difference"


def fails(seen: SeenByClients) -> list[str]:
    return [seen.nothing]  # type: ignore[attr-defined]


def run_of(folder: Path, *operations: tuple[str, int | None, int | None]) -> StoredRun:
    """operations: (f, value given, value answered), one after another; the last one is the final read."""
    rows: list[dict[str, Any]] = []
    for number, (f, given, answered) in enumerate(operations):
        row = {"process": number, "f": f, "key": "k0", "node": "n1", "value": given}
        at_ns = FINAL_NS if number == len(operations) - 1 else number
        for type_, value in ((Type.INVOKE, given), (Type.OK, answered)):
            rows.append(row | {"index": len(rows), "time_ns": at_ns, "type": int(type_), "value": value})
    run = StoredRun(folder)
    blank = dict.fromkeys(HISTORY.names)
    pq.write_table(pa.Table.from_pylist([blank | row for row in rows], HISTORY), run.history)
    phases = [{"name": "final reads", "start_ns": FINAL_NS, "end_ns": FINAL_NS + 5}]
    write_journal(folder, outcome={"phases": phases})
    return run


RIGHT = (("put", 4, 4), ("put", 2, 4), ("highest", None, 4))
WRONG = (("put", 4, 4), ("put", 2, 2), ("highest", None, 3))


def verdict(run: StoredRun, stated: object) -> Verdict:
    checker = checker_of(stated)
    return judge_run(run, [checker])[checker.name]


def test_a_model_finds_that_there_is_no_order(tmp_path: Path) -> None:
    assert verdict(run_of(tmp_path, *RIGHT), MODEL).validity is Validity.VALID
    (tmp_path / "wrong").mkdir()
    wrong = verdict(run_of(tmp_path / "wrong", *WRONG), MODEL)
    assert wrong.validity is Validity.INVALID
    assert wrong.witnesses[0].events


def test_a_function_gives_sentences_with_the_operations_that_show_them(tmp_path: Path) -> None:
    run = run_of(tmp_path, *WRONG)
    found = verdict(run, reads_are_even)
    assert found.validity is Validity.INVALID
    (witness,) = found.witnesses
    assert (witness.kind, witness.summary) == ("reads-are-even", "a read of k0 was odd")
    assert [event["index"] for event in witness.events] == [4, 5]
    assert checker_of(reads_are_even).question == "Is every value that was read even?"
    assert verdict(run, final_is).validity is Validity.VALID


def test_a_function_that_cannot_decide_says_why(tmp_path: Path) -> None:
    def also_wrong(seen: SeenByClients) -> Iterator[object]:
        yield from needs_two_final_reads(seen)
        yield "there is a violation all the same"

    run = run_of(tmp_path, *RIGHT)
    found = verdict(run, needs_two_final_reads)
    assert (found.validity, found.reason) == (Validity.UNKNOWN, "one final read shows no difference")
    assert verdict(run, also_wrong).validity is Validity.INVALID


def test_what_its_code_raises_is_unknown_with_its_line(tmp_path: Path) -> None:
    run = run_of(tmp_path, *RIGHT)
    found = verdict(run, fails)
    line = fails.__code__.co_firstlineno + 1
    assert found.validity is Validity.UNKNOWN
    assert f"fails failed at test_own_checkers.py line {line}: AttributeError" in found.reason
    broken = Model("broken", init=lambda: 0, step=lambda state, operation: 1 / 0)  # type: ignore[arg-type]
    judged = verdict(run, broken)
    assert judged.validity is Validity.UNKNOWN
    assert "test_own_checkers.py line" in judged.reason and "ZeroDivisionError" in judged.reason


def test_nothing_answered_is_not_valid(tmp_path: Path) -> None:
    run = run_of(tmp_path, *RIGHT)
    table = pq.read_table(run.history)
    pq.write_table(table.filter(pa.compute.equal(table["type"], int(Type.INVOKE))), run.history)
    for stated in (MODEL, final_is, reads_are_even):
        assert verdict(run, stated).validity is not Validity.VALID or stated is final_is


def test_own_checkers_judge_where_their_code_is(tmp_path: Path) -> None:
    class Elsewhere:
        description = "Spark"
        given = 0

        def judge(self, tasks: Sequence[Task], progress: object = None) -> list[Judged]:
            Elsewhere.given += len(tasks)
            return [Judged(task.judge(task.part, Budget()), "", 0.0) for task in tasks]

    run = run_of(tmp_path, *WRONG)
    in_parts = replace(CATALOG["statistics"], split=lambda run: [Part(())], judge=lambda part, budget: None)
    checkers = [checker_of(MODEL), in_parts, checker_of(reads_are_even)]
    verdicts = judge_run(run, checkers, Elsewhere())
    assert Elsewhere.given == 1
    assert [verdicts[c.name].validity is Validity.INVALID for c in checkers] == [True, False, True]


def test_a_workload_may_name_checkers_and_state_its_own() -> None:
    stated = ("linearizability", MODEL, reads_are_even)
    assert wrong_names(stated) == ""
    names = [checker.name for checker in select({"history"}, stated)]
    assert names[:3] == ["highest-value", "reads-are-even", "linearizability"]
    assert named_but_lacking({"history"}, stated) == {}
    assert wrong_names((MODEL,)) == ""


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ((5,), "5 is no checker: state a name, a Model, a function or a Checker"),
        ((MODEL, MODEL), "'highest-value' has the name of another checker"),
        ((Model("set", init=lambda: 0, step=highest),), "'set' has the name of another checker"),
        (("lineraizability", MODEL), "did you mean 'linearizability'?"),
        (("recovery",), "it names no checker of what clients saw"),
    ],
)
def test_what_is_no_checker_is_refused(stated: tuple[object, ...], words: str) -> None:
    assert words in wrong_names(stated)


STALE = operations("write 1->1; read ->7")
NIL = STALE.replace(":value 1", ":value nil").replace(":value 7", ":value nil")
FLAG = STALE.replace(":value 1", ":value true").replace(":value 7", ":value true")
WRITE = "    if o.f == 'write': return o.input\n"

FORGETFUL = {
    "None by name": ("0", WRITE + "    if s != o.output: return None\n    return s\n", "None"),
    "None by a condition": ("0", WRITE + "    return s if s == o.output else None\n", "None"),
    "no return": ("0", WRITE + "    if s == o.output: return s\n", "None"),
    "no return where nil is a state": ("None", WRITE + "    if s == o.output: return s\n", "None"),
    "None where nil is a state": ("None", WRITE + "    return s if s == o.output else None\n", "None"),
    "a table without an entry": ("0", WRITE + "    return {}.get((s, o.output))\n", "None"),
    "False": ("0", WRITE + "    return s if s == o.output else False\n", "False"),
    "True": ("0", WRITE + "    return True\n", "True"),
    "a comparison": ("0", WRITE + "    return s == o.output\n", "False"),
    "a pair": ("0", WRITE + "    return s == o.output, s\n", "the pair"),
    "an exception": ("0", WRITE + "    return s if s == o.output else ValueError('stale')\n", "ValueError"),
    "a generator": ("0", "    yield s\n", "a generator"),
    "an iterator": ("0", "    return iter([s])\n", "an iterator"),
    "a function": ("0", "    return lambda: s\n", "function"),
}


def words_of(tmp_path: Path, source: str, history: str = STALE) -> str:
    found = judged_text(tmp_path, history, str(tmp_path / "model.py"), source)
    return found.error or str(found.verdict.validity)


@pytest.mark.parametrize("name", FORGETFUL)
def test_a_result_that_is_no_state_is_refused_with_file_and_line(tmp_path: Path, name: str) -> None:
    first, body, words = FORGETFUL[name]
    said = words_of(tmp_path, f"def init(): return {first}\ndef step(s, o):\n{body}")
    assert re.search(r"model\.py line 2: step on \S+.* gave ", said)
    assert words in said


def test_coroutines_are_refused_wherever_a_value_is_needed(tmp_path: Path) -> None:
    plain = "def init(): return 0\ndef step(s, o): return s\n"
    for source in (
        plain.replace("def step", "async def step"),
        plain.replace("def init", "async def init"),
        plain + "async def partition(o): return o.key\n",
        plain + "def partition(o): yield o.key\n",
    ):
        said = words_of(tmp_path, source)
        assert "model.py" in said
        assert "a coroutine" in said or "a generator" in said


def test_a_canonical_function_that_loses_the_state_is_refused(tmp_path: Path) -> None:
    source = (
        "def init(): return 0\ndef step(s, o): return s\ndef canonical(os):\n    def one(s): pass\n    return one\n"
    )
    assert "None for the state 0" in words_of(tmp_path, source)


REFUSES = "    return s if s == o.output else REFUSED\n"
BY_IF = "    if s == o.output: return s\n    return REFUSED\n"
IN_TURN = "    if o.f == 'read': return s if s == o.output else REFUSED\n"


@pytest.mark.parametrize("history", [NIL, FLAG])
@pytest.mark.parametrize("first", ["None", "0", "False"])
@pytest.mark.parametrize("body", [WRITE + REFUSES, WRITE + BY_IF, WRITE + IN_TURN])
def test_nil_and_booleans_are_states_where_operations_bring_them(
    tmp_path: Path, body: str, first: str, history: str
) -> None:
    source = f"from krucible import REFUSED\ndef init(): return {first}\ndef step(s, o):\n{body}"
    assert words_of(tmp_path, source, history) == Validity.VALID
    assert words_of(tmp_path, source) == Validity.INVALID


def test_a_lambda_may_be_a_model(tmp_path: Path) -> None:
    step = "step = lambda s, o: o.input if o.f == 'write' else s if s == o.output else REFUSED\n"
    source = "from krucible import REFUSED\ninit = lambda: None\n" + step
    assert words_of(tmp_path, source, NIL) == Validity.VALID
    said = words_of(tmp_path, "init = lambda: None\n" + step.replace("REFUSED", "None"))
    assert re.search(r"step on \S+.* gave None", said)
