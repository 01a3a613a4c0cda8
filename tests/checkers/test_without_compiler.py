"""Kernels have the same results as Python functions, without the compiler, and as machine code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_warm_up import FOLDERS

from checkers.base.arrays import Int8, Int64, UInt8, UInt64
from checkers.kernels import jit, plain
from checkers.kernels.configurations import ones, trailing_zeros
from checkers.kernels.jit import kernel, python_alone

JUDGE_TWICE = """
import sys
from pathlib import Path
from random import Random

import small_domain, toy_kafka, toy_transactions
from bench.instruments import transaction_histories
from checkers.base.checker import Budget
from checkers.by_hand import Ask, task_of
from checkers.kernels import plain
from histories import by_construction, tiny, write_stream
from simulated_objects import OBJECTS, history

folder, rng = Path(sys.argv[1]), Random(2)
plain._left[0] = 10**9
OBSERVED = {"failed_cas": "observed"}


def cases():
    yield "cas-register", by_construction(rng, 100, keys=3, crash=0.02), {}
    for _ in range(8):
        yield "cas-register", tiny(rng, 40, 5), {}
        yield "cas-register", small_domain.as_events(small_domain.correct(rng, 60, 8, 3, crash=0.05), "k"), {}
        yield "cas-register", small_domain.as_events(small_domain.nonsense(rng, 30, 20, 3), "k"), OBSERVED
        yield "register", tiny(rng, 40, 5, cas=False), {}
    for what in OBJECTS.values():
        for lies in (0, 3):
            yield what.model, history(what.make(rng), rng, 60, 5, 0.05, lies), {}
    tables = {"list-append": transaction_histories.LISTS, "rw-register": transaction_histories.REGISTERS}
    for model, table in tables.items():
        for texts, together, _ in table.values():
            yield model, transaction_histories.history(texts, together), {}
        for isolation in toy_transactions.ISOLATIONS:
            yield model, toy_transactions.simulate(rng, model, isolation, transactions=40), {}
            yield model, toy_transactions.simulate(rng, model, isolation, transactions=40), {"levels": True}
    for model in ("kafka", "kafka-read-to-end"):
        yield model, toy_kafka.simulate(rng), {}


def judged(path, model, how):
    task = task_of(path, Ask(model, **how), Budget())
    return task.judge(task.part, task.budget)


written = []
for number, (model, events, how) in enumerate(cases()):
    written.append((write_stream(folder / str(number), list(events)) / "history.arrows", model, how))
without = [judged(*each) for each in written]
assert "numba" not in sys.modules
import numba
for each, verdict in zip(written, without, strict=True):
    assert judged(*each) == verdict, (each, verdict)
print(len(written), len({str(each.verdict.validity) for each in without}))
"""


def test_small_histories_have_the_same_verdicts_without_the_compiler(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, FOLDERS))}
    command = [sys.executable, "-c", JUDGE_TWICE, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 100


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
