"""A run of transactions is judged by the checker its workload names, and other runs are not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from checkers.catalog import BY_MODEL, CATALOG
from harness import judging
from system_under_test.subject import Declares


@pytest.mark.parametrize("name", BY_MODEL)
def test_a_checker_of_transactions_judges_where_a_workload_names_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for named, expected in (((name,), [name]), (("linearizability",), [])):
        workload = SimpleNamespace(checkers=named)
        monkeypatch.setattr(judging, "load_workload", lambda spec, workload=workload: workload)
        chosen = [c.name for c in judging.checkers_for(SimpleNamespace(), Declares())]  # type: ignore[arg-type]
        assert [n for n in chosen if n in BY_MODEL] == expected
    assert name not in CATALOG
