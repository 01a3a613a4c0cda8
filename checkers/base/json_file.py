"""The small JSON files of a run.  They are checked before use: they may be years old, or written to a full disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkers.record.files import BrokenFile
from checkers.record.reading import read_json


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file.  Raises BrokenFile if the file holds anything else."""
    found = read_json(path)
    if found is None and not path.exists():
        return {}
    if not isinstance(found, dict):
        raise BrokenFile(f"{path.name} holds no JSON object")
    return found


def read_objects(path: Path) -> list[dict[str, Any]]:
    """The list of objects in a JSON file; empty if there is no such file.  Raises BrokenFile if it is anything else."""
    found = read_json(path)
    if found is None and not path.exists():
        return []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise BrokenFile(f"{path.name} holds no list of JSON objects")
    return found


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: Any) -> list[Any]:
    """The value if it is a list or tuple, else an empty list."""
    return list(value) if isinstance(value, list | tuple) else []


def number(value: Any, default: int) -> int:
    """The value as an int if it is a number that fits into 64 bits, else the default."""
    return int(value) if _is_number(value) else default


def real(value: Any, default: float) -> float:
    """The value as a float if it is a number that fits into 64 bits, else the default."""
    return float(value) if _is_number(value) else default


def _is_number(value: Any) -> bool:
    """JSON allows integers of any length, and Python's reader infinity and NaN as well."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -(2**63) <= value < 2**63
