"""Kernels: set-up leaves nothing to compile, and without the compiler they have the same results as machine code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from checkers.base.arrays import Int8, Int64, UInt8, UInt64
from checkers.base.checker import no_parts
from checkers.base.verdict import Validity, Verdict
from checkers.catalog import select
from checkers.few_rows import OF_PARTS
from checkers.kernels import jit, plain
from checkers.kernels.configurations import ones, trailing_zeros
from checkers.kernels.jit import kernel, python_alone
from checkers.warm_up import GROUPS, WrongVerdict, compile_group

ROOT = Path(__file__).parents[2]
FOLDERS = [
    ROOT,
    ROOT / "tests" / "support",
    *(Path(__file__).parent / room for room in ("base", "models", "kafka_log", "transactions")),
]

SIGNATURES = """
import gc
from checkers.kernels.jit import Kernel

def signatures():
    called = [k for k in gc.get_objects() if isinstance(k, Kernel) and "compiled" in vars(k)]
    return {f"{k.__module__}.{k.__qualname__}{types}" for k in called for types in k.compiled.overloads}

"""
"""Kernels that Python called, with the types of their arguments."""

HISTORIES = """
import json
import sys
from pathlib import Path
from random import Random

import small_domain, toy_kafka, toy_transactions
from bench.instruments import transaction_histories
from checkers.base.checker import Budget
from checkers.by_hand import Ask, names, task_of
from checkers.kernels import plain
from histories import by_construction, tiny, write_stream
from simulated_objects import OBJECTS, history

OBSERVED = {"failed_cas": "observed"}
TABLES = {"list-append": transaction_histories.LISTS, "rw-register": transaction_histories.REGISTERS}


def histories(rng, transactions):
    yield "cas-register", by_construction(rng, 100, keys=3, crash=0.02), {}
    for _ in range(8):
        yield "cas-register", tiny(rng, 40, 5), {}
        yield "cas-register", small_domain.as_events(small_domain.correct(rng, 60, 8, 3, crash=0.05), "k"), {}
        yield "cas-register", small_domain.as_events(small_domain.nonsense(rng, 30, 20, 3), "k"), OBSERVED
        yield "register", tiny(rng, 40, 5, cas=False), {}
    for what in OBJECTS.values():
        for lies in (0, 3):
            yield what.model, history(what.make(rng), rng, 60, 5, 0.05, lies), {}
    for model, table in TABLES.items():
        for texts, together, _ in table.values():
            yield model, transaction_histories.history(texts, together), {}
        for isolation in toy_transactions.ISOLATIONS:
            yield model, toy_transactions.simulate(rng, model, isolation, transactions=transactions), {}
            yield model, toy_transactions.simulate(rng, model, isolation, transactions=40), {"levels": True}
    for model in ("kafka", "kafka-read-to-end"):
        yield model, toy_kafka.simulate(rng), {}


def task(name, events, model, how):
    return task_of(write_stream(folder / name, list(events)) / "history.arrows", Ask(model, **how), Budget())


folder, rng = Path(sys.argv[1]), Random(2)

"""
"""Histories for each model and option, with names: of their model, and the options of `check`."""

JUDGE_ALL = """
from checkers.spark.daemon import watch_compiler

with watch_compiler() as compiler:
    import numba
    import test_history
    from checkers.base.checker import judge_task
    from checkers.base.columns import events_to_table
    from checkers.base.stored_run import StoredRun
    from checkers.by_hand import judge_events
    from checkers.catalog import CATALOG
    from checkers.judging import judge_run
    from checkers.registers.judge_history import CAS_REGISTER
    from checkers.online import OnlineKeys, judge_prefix
    from checkers.sealing.seal import seal
    from checkers.transactions import groups as transactions
    from checkers.transactions.judge import judge_transactions
    from wrong_run import run_that_is_wrong_everywhere

    everyone = list(CATALOG.values())

    def judge(name, events):
        stream = write_stream(folder / name, list(events)) / "history.arrows"
        judge_prefix(stream, {"k", "k0"})
        seal(folder / name)
        judge_run(StoredRun(folder / name), everyone)

    def check(events, model, **options):
        assert judge_task(task("file", events, model, options)).finding.error == "", model
        models.discard(model)

    transactions.TRANSACTIONS_MIN = 0  # small histories are divided into groups, too
    models = set(names())
    judge_run(run_that_is_wrong_everywhere(folder / "wrong"), everyone)
    correct = list(by_construction(rng, 2000, keys=10, crash=0.02))
    judge("correct", correct)
    judge("nonsense", tiny(rng, 60, 5))
    judge("repeated", small_domain.as_events(small_domain.correct(rng, 300, 8, 3, crash=0.05), "k"))
    judge("repeated nonsense", small_domain.as_events(small_domain.nonsense(rng, 40, 4, 3), "k"))
    online = OnlineKeys()
    for first in range(0, len(correct), 500):
        online.take(events_to_table(correct[first : first + 500]))
    for _ in range(4):
        for failed_cas in ("did-not-happen", "observed"):
            some = small_domain.as_events(small_domain.nonsense(rng, 30, 70, 3), "k")
            check(some, "cas-register", failed_cas=failed_cas)
        judge_events(tiny(rng, 30, 5, cas=False), CAS_REGISTER)
    for number, (model, events, how) in enumerate(histories(rng, 300)):
        check(events := list(events), model, **how)
        if model in TABLES and not how:
            judge(str(number), events)
    for texts, together, _ in transaction_histories.REGISTERS.values():
        events = transaction_histories.history(texts, together)
        judge_transactions(events, "rw-register", consistency="strong-session-serializable")
    judge("kafka", toy_kafka.simulate(rng))
    texts, together, _ = transaction_histories.smallest("rw-register", "G-single")
    check(transaction_histories.history(texts, together), "multi-register")
    for model, text in test_history.IN_MODELS.items():
        test_history.judged(folder, text.format("12345678901234567.89M", "1.5"), model)
    without_kernels = {"semaphore:N", "fenced-lock", "leased-lock", "bank"}
    without_kernels |= {"bank-overdraft", "long-fork", "at-least-once-queue"}
    assert models == without_kernels, models
called = {name for name in signatures() if name.startswith("checkers.")}
print("\\n".join({*compiler.names, *called} - set(json.load(sys.stdin))))
"""


JUDGE_TWICE = """
def judged(task):
    return task.judge(task.part, task.budget)


plain._left[0] = 10**9
tasks = [task(str(number), events, model, how) for number, (model, events, how) in enumerate(histories(rng, 40))]
without = list(map(judged, tasks))
assert "numba" not in sys.modules
import numba
for each, verdict in zip(tasks, without, strict=True):
    assert judged(each) == verdict, (each, verdict)
print(len(tasks), len({str(each.verdict.validity) for each in without}))
"""


PREPARE_ALL = """
import ast
import importlib
import inspect
import json
import pkgutil

import checkers
from checkers.kernels.jit import Kernel
from checkers.warm_up import GROUPS, compile_group


def outside_of_kernels(node, names):
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.FunctionDef) and isinstance(names.get(child.name), Kernel)):
            yield from outside_of_kernels(child, names)


called = {}
for found in pkgutil.walk_packages(checkers.__path__, "checkers."):
    module = importlib.import_module(found.name)
    tree = ast.parse(inspect.getsource(module))
    names = dict(vars(module))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("checkers"):
            source = importlib.import_module(node.module)
            names.update({a.asname or a.name: getattr(source, a.name, None) for a in node.names})
    for node in outside_of_kernels(tree, names):
        value, function = None, node.func if isinstance(node, ast.Call) else node
        if function is not node and isinstance(function, ast.Name):
            value = names.get(function.id)
        elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            value = getattr(names.get(function.value.id), function.attr, None)
        if isinstance(value, Kernel):
            called[value.__module__ + "." + value.__qualname__] = value
assert "checkers.kernels.history_grammar.first_fault" in called, sorted(called)
assert "checkers.kernels.history_text._value" not in called, sorted(called)
for name in GROUPS:
    compile_group(name)
missing = [n for n, k in called.items() if "compiled" not in vars(k) or not k.compiled.overloads]
print(json.dumps([missing, sorted(signatures())]))
"""


def in_a_fresh_process(code: str, *words: str, given: str = "") -> str:
    """Return what the code prints; what this process has compiled for other tests does not count."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, FOLDERS))}
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, env=environment, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_workers_of_spark_load_each_function_that_judges_parts_of_a_run_of_registers() -> None:
    of_a_run = select({"history", "logs", "traces", "nodes"}, ("linearizability",))
    assert {c.judge for c in OF_PARTS} == {c.judge for c in of_a_run if c.split is not no_parts}


def test_after_set_up_nothing_is_compiled(tmp_path: Path) -> None:
    """Machine code that other tests left in the cache does not count: the types of arguments are compared."""
    unprepared, prepared = json.loads(in_a_fresh_process(SIGNATURES + PREPARE_ALL))
    assert unprepared == []
    assert in_a_fresh_process(SIGNATURES + HISTORIES + JUDGE_ALL, str(tmp_path), given=json.dumps(prepared)) == "\n"


def test_set_up_refuses_kernels_that_miss_a_planted_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GROUPS, "blind", lambda: iter([Verdict(Validity.VALID)]))
    with pytest.raises(WrongVerdict, match="blind: history 0 contains a violation but was judged valid"):
        compile_group("blind")


def test_small_histories_have_the_same_verdicts_without_the_compiler(tmp_path: Path) -> None:
    assert int(in_a_fresh_process(HISTORIES + JUDGE_TWICE, str(tmp_path)).split()[0]) > 100


@kernel
def _arithmetic(bytes_: UInt8, small: Int8, words: UInt64, numbers: Int64) -> tuple[int, int, np.uint64, int, int]:
    """Where NumPy's scalars would differ from machine code."""
    below = bytes_[0] - 48
    product = small[0] * small[0]
    mixed = (np.uint64(numbers[0]) * np.uint64(11400714819323198485)) >> np.uint64(60)
    counted = 0
    for word in words:
        counted += ones(word) + trailing_zeros(word)
    again = np.empty(2, np.int32)
    again[0] = np.int32(numbers[1])
    return below, product, mixed, counted, again[0] + np.int64(2**40)


ARRAYS = (
    np.array([7], np.uint8),
    np.array([100], np.int8),
    np.array([3 << 40, 1 << 63], np.uint64),
    np.array([-5, 2**35 - 1]),
)


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "compiler_is_loaded", lambda: False)
    monkeypatch.setattr(plain, "_left", [1000])


@pytest.mark.usefixtures("without_compiler")
def test_numbers_are_those_of_machine_code() -> None:
    seen = []

    def work() -> tuple[object, ...]:
        seen.append(jit._CALL.get())
        return _arithmetic(*ARRAYS)

    found = python_alone(work, 0)
    assert found == _arithmetic(*ARRAYS)
    assert seen == [plain.call], "it went to the compiler"
    assert [type(each) for each in found] == [int] * 5


@kernel
def _outside(numbers: Int64, out: Int8) -> int:
    """Work that goes wrong without the compiler, after it has changed an array."""
    out[0] += 1
    return int(numbers[numbers[0]])


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("reads", [1, 1000])
def test_work_that_fails_or_takes_long_is_done_again_by_the_compiler(reads: int) -> None:
    plain._left[0] = reads
    out = list[int]()

    def work() -> int:
        changed = np.zeros(1, np.int8)
        found = _outside(np.array([1 if reads == 1 or jit._CALL.get() is None else 9, 5]), changed)
        out.append(int(changed[0]))
        return found

    assert python_alone(work, 0) == 5
    assert out == [1]


@pytest.mark.usefixtures("without_compiler")
def test_a_large_history_is_never_judged_without_the_compiler() -> None:
    assert python_alone(jit._CALL.get, jit.SMALL_BYTES) is plain.call
    assert python_alone(jit._CALL.get, jit.SMALL_BYTES + 1) is None
