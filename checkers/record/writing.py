"""The one writer of the small files of a run: the types of this room as JSON.  A file is never half written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec


def as_json(value: object) -> Any:
    """A value of the record as JSON holds it: objects, arrays, text, numbers and null."""
    return msgspec.to_builtins(value)


def write_json_whole(path: Path, content: object) -> None:
    """Write a JSON file and flush it to disk.  A kill leaves the old file or the whole new file, and no half of it.

    Text that is no Unicode, such as a node's broken log line, is written with question marks.
    """
    write_text_whole(path, json.dumps(as_json(content), indent=1, ensure_ascii=False) + "\n")


def write_text_whole(path: Path, text: str) -> None:
    """Write a text file as `write_json_whole` does."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(text.encode("utf-8", "replace"))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
