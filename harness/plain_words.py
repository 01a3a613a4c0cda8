"""Numbers, names and lists for readers: units, plurals, short lines.

Text from a run (keys, values, errors, log lines) may be long or hostile.  Functions here shorten it; the templates
escape it for HTML.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LONGEST = 300
"""Maximum characters of one text that are shown.  The files of the run contain the full text."""

_PREPOSITION = re.compile(r"\s(?:of|with|without|in|under|beyond|that|at|from|by|on|for)\b")
_PLURALS = (("ies", "y"), ("ches", "ch"), ("shes", "sh"), ("xes", "x"), ("sses", "ss"), ("criteria", "criterion"))

_UNITS = {"_rate_hz": "/s", "_per_s": "/s", "_hz": "/s", "_ms": " ms", "_s": " s", "_bytes": " bytes", "_share": ""}


def looked_at(figures: Mapping[str, Any]) -> str:
    """Return figures in words: {"keys": 10, "longest_gap_s": 1.2} becomes "10 keys, longest gap 1.2 s"."""
    return ", ".join(_figure(str(name), value) for name, value in figures.items())


def amount(value: Any, name: str = "") -> str:
    """Return a number for readers, with separated thousands and the unit that is the suffix of its name."""
    unit = next((u for suffix, u in _UNITS.items() if name.endswith(suffix)), "")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}{unit}"
    if isinstance(value, float):
        if name.endswith("_share"):
            return f"{value:.0%}".replace("%", " %")
        return (f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}") + unit
    return shorten(str(value))


def label(name: str) -> str:
    """Return the name of a number for readers, without the suffix for its unit."""
    suffix = next((s for s in _UNITS if name.endswith(s)), "")
    return name[: len(name) - len(suffix)].replace("_", " ").replace("-", " ")


def shorten(text: str, most: int = LONGEST) -> str:
    """Return text of at most `most` characters, on one line, without control characters."""
    flat = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+", " ", text[: most * 4])
    return flat if len(flat) <= most and len(text) <= most * 4 else flat[: most - 1] + "…"


def checksum_words(checksum: Any) -> str:
    """Return the checksum of a record (schema LOG) for comparison: the CRC of its batch, without the record's index in
    the batch.
    """
    if not isinstance(checksum, int):
        return shorten(str(checksum), 8)
    return f"{(checksum >> 31 or checksum) & 0xFFFFFFFF:08x}"


def sentence(text: str) -> str:
    """Return the text, with a full stop unless it ends a sentence already."""
    text = text.strip()
    return text if text.endswith((".", "!", "?", "…")) else text + "."


def lower_first(text: str) -> str:
    """Return a sentence for use after a colon, with a lower-case first letter unless the first word is an acronym."""
    return text[0].lower() + text[1:] if len(text) > 1 and text[1].islower() else text


def upper_first(text: str) -> str:
    """Return a text for the start of a sentence, with an upper-case first letter unless the first word contains a
    digit, such as n1.
    """
    word = text.split(" ", 1)[0]
    return text if any(c.isdigit() for c in word) else text[:1].upper() + text[1:]


def seconds(ns: int | float, digits: int = 3) -> str:
    """Return nanoseconds as seconds with a unit."""
    return f"{round(ns / 1e9, digits) + 0.0:,.{digits}f} s"  # + 0.0 avoids a negative zero


def opening(text: str) -> tuple[str, str]:
    """Return the first sentence of a text, without its full stop, and the remaining text.  The dots in `[... 5, 6]` do
    not end a sentence.
    """
    found = re.search(r"(?<!\.)\.(?: |$)", text)
    return (text, "") if found is None else (text[: found.start()], text[found.end() :])


def natural(name: str) -> tuple[str, int, str]:
    """Return a sort key that sorts n2 before n10."""
    head = name.rstrip("0123456789")
    digits = name[len(head) :]
    return head, int(digits) if digits else -1, name


def listed(items: Sequence[str], last: str = "and") -> str:
    """Return the items as `a, b and c`.

    last: word before the last item"""
    return f" {last} ".join(filter(None, (", ".join(items[:-1]), *items[-1:])))


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as `1 node` or `2 nodes`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _figure(name: str, value: Any) -> str:
    words = label(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{words}: {amount(value)}"
    if words.endswith("seconds"):
        kind = words.removesuffix("seconds").removesuffix("in ").strip()
        return f"{kind} {amount(value)} s".strip()
    if words.startswith("seconds "):
        return f"{amount(value)} s {words.removeprefix('seconds ')}"
    if name.endswith(tuple(_UNITS)):
        return f"{words} {amount(value, name)}"
    return f"{amount(value)} {_of_one(words) if value == 1 else words}"


def _of_one(words: str) -> str:
    """Return words in the singular: "copies of logs" becomes "copy of logs"."""
    found = _PREPOSITION.search(words)
    noun, rest = (words[: found.start()], words[found.start() :]) if found else (words, "")
    for ending, one in _PLURALS:
        if noun.endswith(ending):
            return f"{noun.removesuffix(ending)}{one}{rest}"
    return (noun[:-1] if noun.endswith("s") and not noun.endswith("ss") else noun) + rest


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of equal length as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def as_typed(path: Path) -> str:
    """Return a path as a user would type it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
