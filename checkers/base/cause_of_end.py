"""Finds the lines in a program's output that give the reason of its end.

The last line is seldom the reason: Rust ends with a note on RUST_BACKTRACE, and other threads continue to log.  So the
search is for the last panic, traceback or fatal error, in the forms of common languages, and then for the last line of
level fatal or error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

LINES_LOOKED_AT = 300
_CAUSE_LINES = 3
_RUST = re.compile(r"panicked at")
_PYTHON = "Traceback (most recent call last):"
_OTHERS = re.compile(r"^(panic: |fatal error: |Exception in thread |FATAL[: ]|PANIC[: ]|\S*(?:Error|Exception): )")
_WORDS = re.compile(r"[A-Za-z]{3}")
_LEVELS = (
    re.compile(
        r'\b(FATAL|CRITICAL|PANIC)\b|"level": ?"(fatal|panic|critical)"|level=(fatal|panic)|\[(critical|fatal)\]'
    ),
    re.compile(r'\b(ERROR|ERR|SEVERE)\b|"level": ?"error"|level=error|\[error\]'),
)
"""Levels of lines in common logs, the gravest first."""
_NOTE = re.compile(r"^note: (run with|Some details are omitted)")
_INDENTED = re.compile(r"^\s")


def is_note(line: str) -> bool:
    """Return True if a line only explains how to get more output."""
    return bool(_NOTE.match(line))


def cause_of_end(lines: Sequence[str]) -> list[str]:
    """Return at most _CAUSE_LINES lines that give the reason of a program's end; [] if none is recognized.

    lines: output of the program, in order, with indentation
    """
    known = [line for line in lines[-LINES_LOOKED_AT:] if line.strip()]
    for place in reversed(range(len(known))):
        line = known[place]
        if _RUST.search(line):
            following = [each for each in known[place + 1 : place + _CAUSE_LINES] if not is_note(each)]
            return [each.strip() for each in [line, *following[: 1 if line.rstrip().endswith(":") else 0]]]
        if _PYTHON in line:
            raised = next((each for each in known[place + 1 :] if not _INDENTED.match(each)), "")
            return [raised.strip()] if raised else []
        if _OTHERS.match(line) and not _in_traceback(known, place):
            return [line.strip()]
    return next(filter(None, (_last_burst(known, level) for level in _LEVELS)), [])


def _last_burst(lines: Sequence[str], level: re.Pattern[str]) -> list[str]:
    """Return the first lines of the last group of successive lines of this level; later lines give only details."""
    last = max((place for place, line in enumerate(lines) if level.search(line)), default=-1)
    first = last
    while first > 0 and level.search(lines[first - 1]):
        first -= 1
    worded = [line.strip() for line in lines[first : last + 1] if last >= 0 and _WORDS.search(level.sub("", line))]
    return worded[:_CAUSE_LINES]


def _in_traceback(lines: Sequence[str], place: int) -> bool:
    """Return True if this line ends a traceback of Python, which the search finds at its first line."""
    return any(_PYTHON in line for line in lines[max(0, place - 60) : place])
