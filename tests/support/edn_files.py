"""Histories of few words as files of EDN, and their verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from checkers.base.checker import Budget
from checkers.base.history import Event
from checkers.by_hand import Ask, FileVerdict, judge, task_of
from checkers.formats.read_once import Pieces, read_pieces
from checkers.formats.recognise import read_history

OUTCOMES = {"!": "fail", "?": "info"}


def operations(script: str) -> str:
    """Return operations `f given->answer`, one after another, each by a process of its own, separated by `; `.

    An answer begins with `!` if the operation failed and with `?` if its outcome is unknown.  `@` precedes the key.
    """
    lines = []
    for process, step in enumerate(script.split("; ")):
        told, _, key = step.partition(" @")
        asked, answer = told.split("->")
        f, _, given = asked.strip().partition(" ")
        named = f", :key {key}" if key else ""
        for type_, value in (("invoke", given), (OUTCOMES.get(answer[:1], "ok"), answer.lstrip("!?"))):
            lines.append(f"{{:process {process}, :type :{type_}, :f :{f}{named}, :value {value or 'nil'}}}")
    return "\n".join(lines) + "\n"


def read_any(path: Path, keyed: bool = False) -> list[Event]:
    """Return the events of one file, in order, checked against the grammar."""
    return read_history(read_pieces(path), keyed=keyed).events


def read_bytes(content: bytes) -> list[Event]:
    """Act like `read_any`, of a file's content."""
    return read_history(Pieces([content])).events


def judged_file(path: Path, model: str, source: str = "", **options: Any) -> FileVerdict:
    return judge(task_of(path, Ask(model, source, **options), Budget()).part, Budget())


def judged_text(folder: Path, text: str, model: str, source: str = "", **options: Any) -> FileVerdict:
    """text: a history of EDN, or a script of `operations`."""
    path = folder / "history.edn"
    path.write_text(operations(text) if "->" in text else text)
    return judged_file(path, model, source, **options)
