"""Lines of words for a terminal or a log: broken between words, continued below where their words began."""

from __future__ import annotations

import textwrap

from rich.console import Console

WIDTH_LEAST = 60
WIDTH_MOST = 160
"""Lines longer than this are hard to follow with the eye."""


def width_of(console: Console) -> int:
    """Columns in which words are broken."""
    return min(max(WIDTH_LEAST, console.width), WIDTH_MOST)


def wrapped(text: str, width: int, first: str = "", rest: str | None = None) -> str:
    """The text in lines of at most `width` columns.  first: before the first line; rest: before the others, as many
    spaces if none is given.  A single word that is longer than a line (a path, a command) is never broken."""
    indent = " " * len(first) if rest is None else rest
    lines = textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines) or first.rstrip()
