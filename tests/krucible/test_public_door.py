"""The package `krucible`: its names load lazily, have types, and do what their docstrings show."""

from __future__ import annotations

import ast
import doctest
import subprocess
import sys
from pathlib import Path

import pytest

import krucible
from harness.judge import check_files
from harness.run import session

ROOM = Path(krucible.__file__).parent


@pytest.mark.parametrize("name", krucible.__all__)
def test_every_name_is_there_and_type_checkers_know_it(name: str) -> None:
    assert getattr(krucible, name).__doc__ and name in dir(krucible)
    stub = ast.parse((ROOM / "__init__.pyi").read_text())
    known = {alias.name: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert known == krucible._NAMES


def test_importing_it_loads_nothing_else_because_clients_on_nodes_import_it() -> None:
    code = "import sys; before = set(sys.modules); import krucible; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOM.parent, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == ["krucible"]


def test_the_docstrings_are_true(request: pytest.FixtureRequest) -> None:
    for module in (krucible, check_files):
        tests = doctest.DocTestFinder().find(module, globs={**vars(module), "getfixture": request.getfixturevalue})
        tried = [doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL).run(test) for test in tests]
        assert sum(one.attempted for one in tried) > 0 and not any(one.failed for one in tried), module


def test_a_history_or_a_model_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no history"):
        krucible.check(tmp_path / "no.edn", "register")
    (tmp_path / "empty.edn").write_text("")
    with pytest.raises(ValueError, match="there is no model 'registr'; there are register, "):
        krucible.check(tmp_path / "empty.edn", "registr")


def test_a_spec_is_filled_in_like_the_options_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "check_spec", lambda spec: None)
    monkeypatch.setattr(session, "run_and_judge", lambda spec, *_: spec)
    slow = tmp_path / "slow.py"
    slow.write_text(
        "from krucible import Client, System\n"
        "class Slow(System):\n"
        "    failover_s = 10\n"
        "    async def start(self, node, nodes): return 'true'\n"
        "class Registers(Client):\n"
        "    def read(self, key): ...\n"
        "    def write(self, key, value): ...\n"
    )
    spec = session.run(krucible.Spec(subject=str(slow), nemesis="all", backend="namespaces", time_limit_s=20.0))
    assert (spec.time_limit_s, spec.recovery_limit_s) == (20.0, 150.0)  # type: ignore[attr-defined]
    assert "partition" in spec.nemesis.split(",")  # type: ignore[attr-defined]
