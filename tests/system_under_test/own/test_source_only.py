"""What stands beside a system's file is run from its source, too."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

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
