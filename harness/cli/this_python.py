"""Whether this Python has what Krucible needs.  A `python -m harness` outside of the project's .venv has not.

It imports nothing but Python's own modules, so that it can run where everything else is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

NEEDED = ("click", "numpy", "pyarrow", "numba", "msgspec", "networkx", "rich")
"""Packages that nearly every command imports.  Those of pyproject.toml are more, but all are installed together."""


def advice(root: Path, needed: Sequence[str] = NEEDED) -> str:
    """A sentence that says what to do if this Python lacks a package; "" if it has all of them.

    root: the folder of the repository, which holds .venv once `make setup` has run."""
    lacking = [name for name in needed if find_spec(name) is None]
    if not lacking:
        return ""
    own = root / ".venv" / "bin" / "python"
    instead = f"run it with {own}" if own.exists() else "run `make setup`, and then .venv/bin/krucible"
    return f"krucible: {sys.executable} lacks {', '.join(lacking)}: {instead}"
