"""A system's file imports its client's library at the top, on a machine that lacks it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from system_under_test.own.read_own_system import NoSystem, read_files

IMPORTS = """
import no_such_library
import no_such_library.deep.part
from no_such_library.errors import Refused, Timeout as TimedOut
import json
"""


def written(tmp_path: Path, text: str, name: str = "mine.py") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_names_of_a_missing_library_can_be_listed_and_derived_from(tmp_path: Path) -> None:
    lines = (
        "refused = (Refused, TimedOut, no_such_library.errors.Other)\nclass Own(Refused): ...\nread = json.loads('7')\n"
    )
    module = read_files(written(tmp_path, IMPORTS + lines))
    assert [kind.__name__ for kind in module.refused] == ["Refused", "Timeout", "Other"]
    assert issubclass(module.Own, module.Refused)
    assert module.read == 7, "a library that is there is the real one"


@pytest.mark.parametrize("call", ["no_such_library.connect()", "Refused('late')", "no_such_library.deep.part.run(1)"])
def test_a_missing_library_does_nothing(call: str, tmp_path: Path) -> None:
    module = read_files(written(tmp_path, f"{IMPORTS}\ndef start():\n    return {call}\n"))
    with pytest.raises(ModuleNotFoundError, match=r"is not installed here: call .* in a method of the client"):
        module.start()
    with pytest.raises(NoSystem, match="cannot be run: ModuleNotFoundError: no_such_library"):
        read_files(written(tmp_path, f"{IMPORTS}\n{call}\n"))


def test_no_stand_in_outlives_the_reading_of_its_file(tmp_path: Path) -> None:
    read_files(written(tmp_path, IMPORTS))
    assert not [name for name in sys.modules if name.startswith("no_such_library")]


def test_only_what_the_files_import_themselves_is_replaced(tmp_path: Path) -> None:
    indirect = "try:\n    __import__('other_missing_library')\nexcept ImportError:\n    there = False\n"
    assert not read_files(written(tmp_path, IMPORTS + indirect)).there


def test_a_client_node_must_have_every_library(tmp_path: Path) -> None:
    with pytest.raises(NoSystem, match="No module named 'no_such_library'"):
        read_files(tmp_path / "mine.py", files={"mine.py": IMPORTS})


def test_a_file_may_have_the_name_of_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "import no_such_server\nrefused = no_such_server.Refused\n"
    assert read_files(written(tmp_path, text, "no_such_server.py")).refused.__name__ == "Refused"


def test_the_error_of_a_file_with_broken_syntax_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(NoSystem, match=r"mine.py line 2: "):
        read_files(written(tmp_path, "import no_such_library\ndef broken(:\n"))
