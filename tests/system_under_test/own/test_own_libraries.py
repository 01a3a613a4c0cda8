"""A system's file imports its client's library at the top, on a machine that lacks it."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from system_under_test.own.files_handed_over import LINKED_FROM_BYTES, link_or_copy
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


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "krucible" / "files"


def test_two_runs_share_a_large_file(tmp_path: Path, cache: Path) -> None:
    (source := tmp_path / "server").write_bytes(b"x" * LINKED_FROM_BYTES)
    source.chmod(0o755)
    first, second = tmp_path / "first", tmp_path / "second"
    link_or_copy(source, first)
    link_or_copy(source, second)
    assert first.samefile(second) and not first.samefile(source)
    assert first.read_bytes() == source.read_bytes()
    assert first.stat().st_mode & 0o777 == 0o555
    source.write_bytes(b"y" * LINKED_FROM_BYTES)
    link_or_copy(source, third := tmp_path / "third")
    assert (first.read_bytes()[:1], third.read_bytes()[:1]) == (b"x", b"y")


def test_a_shared_file_that_was_changed_is_made_again(tmp_path: Path, cache: Path) -> None:
    (source := tmp_path / "server").write_bytes(b"x" * LINKED_FROM_BYTES)
    link_or_copy(source, tmp_path / "first")
    (shared,) = cache.iterdir()
    shared.chmod(0o644)
    shared.write_bytes(b"z")
    link_or_copy(source, tmp_path / "second")
    assert (tmp_path / "second").read_bytes() == source.read_bytes()
    assert [path.name for path in cache.iterdir()] == [shared.name]


def test_a_small_file_is_a_copy_of_its_own(tmp_path: Path, cache: Path) -> None:
    (source := tmp_path / "notes").write_bytes(b"x" * (LINKED_FROM_BYTES - 1))
    link_or_copy(source, tmp_path / "first")
    link_or_copy(source, tmp_path / "second")
    assert not (tmp_path / "first").samefile(tmp_path / "second")
    assert not cache.exists()


def test_without_hard_links_it_is_a_copy(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    (source := tmp_path / "server").write_bytes(b"x" * LINKED_FROM_BYTES)
    link_or_copy(source, tmp_path / "first")
    assert (tmp_path / "first").read_bytes() == source.read_bytes()


ROOT = Path(__file__).parents[3]
SYSTEM = """
from beside import WORD
from inner.deep import DEPTH
print(WORD, DEPTH)
"""
READ = "import sys; from pathlib import Path; from system_under_test.own.read_own_system import read_files; "
READ += "read_files(Path(sys.argv[1]))"


def compiled_of_another(path: Path, text: str, other: str) -> None:
    """Leave compiled code beside a file that carries its time and size, and is that of another text."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(other)
    py_compile.compile(str(path), doraise=True)
    status = path.stat()
    path.write_text(text)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("relative", [False, True])
def test_compiled_code_beside_the_files_of_a_system_is_not_run(relative: bool, tmp_path: Path) -> None:
    main = tmp_path / "system.py"
    main.write_text(SYSTEM)
    compiled_of_another(tmp_path / "beside.py", "WORD = 'true'\n", "WORD = 'lies'\n")
    compiled_of_another(tmp_path / "inner" / "deep.py", "DEPTH = 1\n", "DEPTH = 2\n")
    before = sorted(tmp_path.rglob("*"))
    folder, name = (tmp_path.parent, f"{tmp_path.name}/system.py") if relative else (ROOT, str(main))
    found = []
    for argv in (["-c", READ, name], [name]):
        usual = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, *argv], cwd=folder, env=usual, capture_output=True, text=True, check=True
        )
        found.append(done.stdout)
    assert found == ["true 1\n", "lies 2\n"], "Python itself runs the compiled code"
    assert sorted(tmp_path.rglob("*")) == before
