"""A run of transactions is judged by the checker its workload names, and other runs are not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from checkers.base.demands import Demands
from checkers.catalog import BY_MODEL, CATALOG
from harness.judge import judge_run as judging
from harness.spec import Spec


@pytest.mark.parametrize("name", BY_MODEL)
def test_a_checker_of_transactions_judges_where_a_workload_names_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for named, expected in (((name,), [name]), (("linearizability",), [])):
        workload = SimpleNamespace(checkers=named, unique_values=True)
        monkeypatch.setattr(judging, "load_workload", lambda spec, workload=workload: workload)
        chosen = [c.name for c in judging.checkers_for(Spec(), Demands(logs=True))]
        assert [n for n in chosen if n in BY_MODEL] == expected
    assert name not in CATALOG


@pytest.mark.parametrize("unique", [True, False])
def test_a_log_is_held_against_the_history_only_where_no_value_is_written_twice(
    unique: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = SimpleNamespace(checkers=("linearizability",), unique_values=unique)
    monkeypatch.setattr(judging, "load_workload", lambda spec: workload)
    chosen = judging.checkers_for(Spec(), Demands(logs=True, traces=True, nodes=True))
    assert ("history-against-log" in {checker.name for checker in chosen}) is unique
