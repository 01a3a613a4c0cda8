"""A copy of the repository whose .venv runs the code of the original says so."""

from __future__ import annotations

from pathlib import Path

from harness.cli.main import of_another_folder


def test_only_a_copy_is_told(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    for root in (original, copy):
        (root / "harness" / "cli").mkdir(parents=True)
        (root / "harness" / "cli" / "main.py").touch()
    assert of_another_folder(tmp_path, original) == ""
    assert of_another_folder(original, original) == ""
    (tmp_path / "link").symlink_to(original)
    assert of_another_folder(tmp_path / "link", original) == ""
    words = of_another_folder(copy, original)
    assert f"this runs the code of {original}, not of {copy}" in words and "\n" not in words
