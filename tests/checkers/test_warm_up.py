"""After set-up nothing is left to compile: no run and no `check` of any history compiles a kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from checkers.base.checker import no_parts
from checkers.base.verdict import Validity, Verdict
from checkers.catalog import select
from checkers.few_rows import OF_PARTS
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

JUDGE_ALL = """
import json
import sys
from pathlib import Path
from random import Random

from checkers.spark.daemon import watch_compiler

with watch_compiler() as compiler:
    import numba
    import small_domain, test_history, toy_kafka, toy_transactions
    from bench.instruments import transaction_histories
    from checkers.catalog import CATALOG
    from checkers.base.checker import Budget
    from checkers.base.stored_run import StoredRun
    from checkers.base.columns import events_to_table
    from checkers.by_hand import judge_events
    from checkers.by_hand import Ask, names, task_of
    from checkers.registers.judge_history import CAS_REGISTER
    from checkers.online import OnlineKeys
    from checkers.online import judge_prefix
    from checkers.judging import judge_run
    from checkers.sealing.seal import seal
    from checkers.base.checker import judge_task
    from checkers.transactions import groups as transactions
    from checkers.transactions.judge import judge_transactions
    from histories import by_construction, tiny, write_stream
    from simulated_objects import OBJECTS, history
    from wrong_run import run_that_is_wrong_everywhere

    folder, rng = Path(sys.argv[1]), Random(1)
    everyone = list(CATALOG.values())

    def judge(name, events):
        stream = write_stream(folder / name, list(events)) / "history.arrows"
        judge_prefix(stream, {"k", "k0"})
        seal(folder / name)
        judge_run(StoredRun(folder / name), everyone)

    def check(events, model, **options):
        write_stream(folder / "file", list(events))
        task = task_of(folder / "file" / "history.arrows", Ask(model, **options), Budget())
        assert judge_task(task).finding.error == "", model
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
    check(tiny(rng, 60, 5, cas=False), "register")
    for _ in range(4):
        for failed_cas in ("did-not-happen", "observed"):
            some = small_domain.as_events(small_domain.nonsense(rng, 30, 70, 3), "k")
            check(some, "cas-register", failed_cas=failed_cas)
        judge_events(tiny(rng, 30, 5, cas=False), CAS_REGISTER)
    for what in OBJECTS.values():
        for lies in (0, 3):
            check(history(what.make(rng), rng, 60, 5, 0.05, lies), what.model)
    tables = {"list-append": transaction_histories.LISTS, "rw-register": transaction_histories.REGISTERS}
    for model, table in tables.items():
        for texts, together, _ in table.values():
            events = transaction_histories.history(texts, together)
            check(events, model)
            if model == "rw-register":
                judge_transactions(events, model, consistency="strong-session-serializable")
        for isolation in toy_transactions.ISOLATIONS:
            events = toy_transactions.simulate(rng, model, isolation, transactions=300)
            check(events, model)
            judge(f"{model} {isolation}", events)
    for model in ("kafka", "kafka-read-to-end"):
        check(toy_kafka.simulate(rng), model)
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
    command = [sys.executable, "-c", SIGNATURES + code, *words]
    done = subprocess.run(command, env=environment, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_workers_of_spark_load_each_function_that_judges_parts_of_a_run_of_registers() -> None:
    of_a_run = select({"history", "logs", "traces", "nodes"}, ("linearizability",))
    assert {c.judge for c in OF_PARTS} == {c.judge for c in of_a_run if c.split is not no_parts}


def test_after_set_up_nothing_is_compiled(tmp_path: Path) -> None:
    """Machine code that other tests left in the cache does not count: the types of arguments are compared."""
    unprepared, prepared = json.loads(in_a_fresh_process(PREPARE_ALL))
    assert unprepared == []
    assert in_a_fresh_process(JUDGE_ALL, str(tmp_path), given=json.dumps(prepared)) == "\n"


def test_set_up_refuses_kernels_that_miss_a_planted_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GROUPS, "blind", lambda: iter([Verdict(Validity.VALID)]))
    with pytest.raises(WrongVerdict, match="blind: history 0 holds a violation and was judged valid"):
        compile_group("blind")
