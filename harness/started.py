"""The command by which this process was started, and a check that its Python has the required packages.

This module imports only the standard library, so that it works if all other packages are missing.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

STARTED_AS = "KRUCIBLE_STARTED_AS"
"""Environment variable: the words by which the user started the program, or "make" for a goal of make.  Child processes
inherit the variable, so that all printed commands begin with the user's words.
"""

NEEDED = ("click", "numpy", "pyarrow", "numba", "msgspec", "networkx", "rich")
"""Packages that nearly every command imports.  If they are installed, so are all others in pyproject.toml."""


def advice(root: Path, needed: Sequence[str] = NEEDED) -> str:
    """Return a message with a remedy if this Python lacks a package; "" if it has all.

    root: folder of the repository, in which `make setup` creates .venv
    """
    lacking = [name for name in needed if find_spec(name) is None]
    if not lacking:
        return ""
    own = root / ".venv" / "bin" / "python"
    instead = f"run it with {own}" if own.exists() else "run `make setup`, and then .venv/bin/krucible"
    return f"krucible: {sys.executable} lacks {', '.join(lacking)}: {instead}"


def by_make() -> bool:
    """Return True if a goal of make started this process, or if the origin is unknown."""
    return os.environ.get(STARTED_AS, "make") == "make"


def program() -> str:
    """Return the words that start this program in the user's shell."""
    if not by_make():
        return os.environ[STARTED_AS]
    script = Path(sys.executable).parent / "krucible"
    if not script.exists():
        return f"{shlex.quote(_from_here(Path(sys.executable)))} -m harness"
    return "krucible" if shutil.which("krucible") == str(script) else shlex.quote(_from_here(script))


def as_started(original: Sequence[str], script: str) -> str:
    """Return the words of this process' command line that start the program.

    original: `sys.orig_argv`
    script: `sys.argv[0]`"""
    if "-m" in original:
        return shlex.join(original[: original.index("-m") + 2])
    return "krucible" if shutil.which("krucible") == script else shlex.quote(_from_here(Path(script)))


def _from_here(path: Path) -> str:
    """Return the path relative to the working folder if it is below, else the absolute path."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
