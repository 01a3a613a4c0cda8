"""After set-up nothing is left to compile: not by a run, not by `check`, whatever the history is like."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from checkers.verdict import Validity, Verdict
from checkers.warm import GROUPS, WrongVerdict, compile_group

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT, *(Path(__file__).parent / name for name in (".", "transactions", "kafka_log"))]

SET_UP = """
import sys
from checkers.warm import compile_group
compile_group(sys.argv[1])
"""

JUDGE_ALL = """
import sys
from pathlib import Path
from random import Random

from checkers.kernels.compilations import watch_compiler

with watch_compiler() as compiler:
    import small_domain, test_small_models, test_transactions_anomalies, toy_kafka, toy_transactions
    from checkers.catalog import CATALOG
    from checkers.checker import RunFiles
    from checkers.judge_events import MODEL_NAMES, judge_events
    from checkers.kafka_log import judge_kafka_log
    from checkers.models.registers import CAS_REGISTER
    from checkers.pipeline import judge_run
    from checkers.seal import seal
    from checkers.transactions import judge_transactions
    from histories import by_construction, tiny, write_stream
    from simulated_objects import history
    from wrong_run import run_that_is_wrong_everywhere

    folder, rng = Path(sys.argv[1]), Random(1)

    def judge(name, events):
        seal(write_stream(folder / name, list(events)))
        judge_run(RunFiles(folder / name), list(CATALOG.values()))

    judge_run(run_that_is_wrong_everywhere(folder / "wrong"), list(CATALOG.values()))
    judge("correct", by_construction(rng, 2000, keys=10, crash=0.02))
    judge("nonsense", tiny(rng, 60, 5))
    judge("repeated", small_domain.as_events(small_domain.correct(rng, 300, 8, 3, crash=0.05), "k"))
    judge("repeated nonsense", small_domain.as_events(small_domain.nonsense(rng, 40, 4, 3), "k"))
    for _ in range(4):
        some = small_domain.as_events(small_domain.nonsense(rng, 30, 70, 3), "k")
        for failed_cas in ("did-not-happen", "observed"):
            judge_events(some, "cas-register", failed_cas=failed_cas)
        judge_events(tiny(rng, 30, 5, cas=False), CAS_REGISTER)
    for model in MODEL_NAMES:
        if model in test_small_models.SIMULATED:
            for lies in (0, 3):
                judge_events(history(test_small_models.SIMULATED[model][0], rng, 60, 5, 0.05, lies), model)
    for model, name in test_transactions_anomalies.CASES:
        texts, together, _ = test_transactions_anomalies.smallest(model, name)
        events = test_transactions_anomalies.history(texts, together)
        judge_transactions(events, model)
        if model == "rw-register":
            judge_transactions(events, model, linearizable_keys=True)
    for isolation in toy_transactions.ISOLATIONS:
        for model in ("list-append", "rw-register"):
            judge_transactions(toy_transactions.simulate(rng, model, isolation, transactions=300), model)
    for ww in (False, True):
        judge_kafka_log(toy_kafka.simulate(rng), ww_dependencies=ww)
print("\\n".join(compiler.names))
"""


@pytest.mark.timeout(600)
def test_after_set_up_nothing_is_compiled(tmp_path: Path) -> None:
    """In fresh processes, as a user's; what this one has compiled for other tests does not count."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, FOLDERS))}

    def run(script: str, *arguments: str) -> str:
        command = [sys.executable, "-c", script, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    for name in GROUPS:
        run(SET_UP, name)
    assert run(JUDGE_ALL, str(tmp_path)).split() == []


def test_set_up_refuses_kernels_that_miss_a_planted_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GROUPS, "blind", lambda: iter([Verdict(Validity.VALID)]))
    with pytest.raises(WrongVerdict, match="blind: history 0 holds a violation and was judged valid"):
        compile_group("blind")
