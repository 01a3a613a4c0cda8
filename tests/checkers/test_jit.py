"""Machine code is never older than its sources, and travels with them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from checkers.kernels import history_text, machine_code
from checkers.kernels.jit import Kernel, inner_kernel

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder `checkers/kernels` of little sources; the one named `user` imports some of the others."""
    monkeypatch.setattr(machine_code, "_ROOT", tmp_path)
    kernels = tmp_path / "checkers" / "kernels"
    kernels.mkdir(parents=True)
    for name in ("numbers", "masks", "lazily", "bits", "other"):
        (kernels / f"{name}.py").write_text("ONE = 1\n")
    (kernels / "numbers.py").write_text("from checkers.kernels.bits import ONE\n")
    (kernels / "user.py").write_text(
        "from checkers.kernels import (\n    masks as m,\n    nothing_of_this_name,\n)\n"
        "from checkers.kernels.numbers import ONE\n"
        "def f():\n    import checkers.kernels.lazily\n"
    )
    return kernels


@pytest.mark.parametrize("imported", ["user", "numbers", "masks", "lazily", "bits"])
def test_a_change_in_anything_a_kernel_imports_makes_its_machine_code_anew(tree: Path, imported: str) -> None:
    before = machine_code.machine_code_folder(tree / "user.py")
    with (tree / f"{imported}.py").open("a") as file:
        file.write("TWO = 2\n")
    assert machine_code.machine_code_folder(tree / "user.py") != before


def test_a_change_elsewhere_does_not(tree: Path) -> None:
    before = machine_code.machine_code_folder(tree / "user.py")
    (tree / "other.py").write_text("ONE = 2\n")
    assert machine_code.machine_code_folder(tree / "user.py") == before


def test_a_file_that_moves_gets_machine_code_of_its_own(tree: Path) -> None:
    """Kept machine code imports the modules of the place where it was compiled."""
    before = machine_code.machine_code_folder(tree / "user.py")
    (tree / "deeper").mkdir()
    moved = (tree / "user.py").rename(tree / "deeper" / "user.py")
    assert machine_code.machine_code_folder(moved) != before


COMPILE_ONE = """
from numba.core import event
from checkers.kernels.bits import ones
import numpy as np
from checkers.kernels import operations
with event.install_recorder("numba:compile") as compiled:
    operations.counted(np.arange(3))
print(operations.__file__, sum(e.is_start for _, e in compiled.buffer))
"""


COMPILE_CALLER = """
import numpy as np
from checkers.kernels.jit import kernel
from checkers.kernels.operations import counted
counted(np.arange(3))
@kernel
def twice(a):
    return 2 * counted(a)
print(twice(np.arange(3)))
"""


def test_machine_code_made_in_one_folder_is_used_in_another_and_by_another_cache(tmp_path: Path) -> None:
    """As on a node of a cluster: sources and machine code side by side, under a path that never compiled anything."""
    here, there = tmp_path / "here", tmp_path / "there" / "deeper"
    for room in ("base", "kernels"):
        (here / "checkers" / room).mkdir(parents=True)
    kernels = ("kernels/__init__.py", "kernels/jit.py", "kernels/machine_code.py")
    for name in ("__init__.py", "base/__init__.py", "base/cache_folder.py", *kernels):
        shutil.copy(ROOT / "checkers" / name, here / "checkers" / name)
    (here / "checkers" / "kernels" / "bits.py").write_text("def ones(): return 1\n")
    (here / "checkers" / "kernels" / "operations.py").write_text(
        "from checkers.kernels.jit import kernel\n@kernel\ndef counted(a):\n    return len(a)\n"
    )

    def run(root: Path, cache: str, code: str = COMPILE_ONE) -> str:
        environment = os.environ | {"PYTHONPATH": str(root), "XDG_CACHE_HOME": str(tmp_path / cache)}
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert run(here, "cache").endswith("operations.py 1")
    assert run(here, "cache").endswith("operations.py 0")
    assert run(here, "cache", COMPILE_CALLER) == "6", "a new kernel that calls one whose machine code was kept"
    shutil.copytree(here, there)
    shutil.move(tmp_path / "cache" / "krucible" / "kernels", there / machine_code.BESIDE_SOURCES)
    assert run(there, "empty") == f"{there}/checkers/kernels/operations.py 0"
    assert not (tmp_path / "empty" / "krucible" / "kernels").exists()


def test_the_readers_of_text_and_all_they_call_count_no_references() -> None:
    """Reference counting is atomic; with it they take four times as long."""
    waiting: list[object] = [history_text.read_maps, history_text.read_lines]
    seen = set[str]()
    while waiting:
        each = waiting.pop()
        if isinstance(each, Kernel) and each.function.__name__ not in seen:
            seen.add(each.function.__name__)
            assert each.options["_nrt"] is False, each.function.__name__
            names = each.function.__globals__
            waiting += [names[name] for name in each.function.__code__.co_names if name in names]
    assert {"_value", "_word"} <= seen


def test_an_inner_kernel_has_no_entry_for_python() -> None:
    with pytest.raises(TypeError, match="first_bit is an inner kernel"):
        inner_kernel(first_bit)(1)


def first_bit(word: int) -> int:
    return word & 1
