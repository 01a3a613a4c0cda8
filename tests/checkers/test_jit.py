"""Machine code is never older than the sources it was made from."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkers.kernels import jit


def test_machine_code_is_kept_under_the_text_of_all_it_is_made_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit, "__file__", str(tmp_path / "jit.py"))
    (tmp_path / "jit.py").write_text("")
    (tmp_path / "numbers.py").write_text("ONE = 1\n")
    (tmp_path / "other.py").write_text("")
    user = tmp_path / "user.py"
    user.write_text("from checkers.kernels.jit import kernel\nfrom checkers.kernels.numbers import ONE\n")
    before = jit.machine_code_folder(user)
    (tmp_path / "other.py").write_text("changed")
    assert jit.machine_code_folder(user) == before
    (tmp_path / "numbers.py").write_text("ONE = 2\n")
    assert jit.machine_code_folder(user) != before
