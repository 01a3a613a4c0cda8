"""Reading a model of one's own from a Python file (`docs/models.md` shows one).

The file defines `init` and `step`, and may define `observers`, `partition`, `describe`, `canonical` and
`process_matters`; `checkers/models/model.py` says what each means.  The file is run: it is code, not data.
"""

from __future__ import annotations

import runpy
from pathlib import Path

from checkers.models.model import Model, by_key, told


class BadModel(ValueError):
    """A file that is no model; the message says why."""


def load_model(path: Path) -> Model:
    """Raises BadModel."""
    try:
        found = runpy.run_path(str(path))
    except Exception as problem:
        raise BadModel(f"{path}: cannot be run as Python ({type(problem).__name__}: {problem})") from problem
    for name in ("init", "step"):
        if not callable(found.get(name)):
            raise BadModel(f"{path}: defines no function {name}; docs/models.md shows what a model needs")
    return Model(
        name=path.stem,
        init=found["init"],
        step=found["step"],
        observers=frozenset(found.get("observers", ())),
        process_matters=bool(found.get("process_matters", False)),
        partition=found.get("partition", by_key),
        describe=found.get("describe", told),
        canonical=found.get("canonical"),
    )
