"""Finds the time in a line of a log, as far as lines are written today: ISO 8601, syslog, redis, glog, seconds, clock.

    "2026-11-24T10:11:49.460Z", "2026/11/24 10:11:49.460 UTC", "Nov 24 10:11:49", "24 Nov 2026 10:11:49.460",
    "I1124 10:11:49.460123", "1795774309.460", "1795774309460", "10:11:49.460"

A line states no time zone, or a node has another one than the harness.  Then the hours are moved until the line falls
into the run, by whole quarters of an hour.  A line that never falls into it has no time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: place for place, name in enumerate(_NAMES, 1)}
_MONTH = "|".join(_MONTHS)
_CLOCK = r"(?P<h>[01]\d|2[0-3]):(?P<m>[0-5]\d):(?P<s>[0-5]\d)(?:[.,](?P<f>\d{1,9}))?"
_FORMS = (
    re.compile(
        rf"(?P<y>20\d\d)[-/.](?P<mo>0\d|1[0-2])[-/.](?P<d>[0-3]\d)[T _]{_CLOCK}\s?(?P<z>Z|UTC|GMT|[+-]\d\d:?\d\d)?"
    ),
    re.compile(rf"(?P<d>[0-3]?\d)[ /-](?P<mon>{_MONTH})[ /-](?P<y>20\d\d)[ :T]{_CLOCK}"),
    re.compile(rf"(?P<mon>{_MONTH}) +(?P<d>[0-3]?\d) {_CLOCK}"),
    re.compile(rf"^[IWEFD](?P<mo>0\d|1[0-2])(?P<d>[0-3]\d) +{_CLOCK}"),
    re.compile(r"(?:^\W?|[:=]\s?)(?P<unix>1[6-9]\d{8}|2\d{9})(?:\.(?P<f>\d{1,9}))?(?![\d.])"),
    re.compile(r"(?:^\W?|[:=]\s?)(?P<unix_ms>1[6-9]\d{11}|2\d{12})(?![\d.])"),
    re.compile(rf"^\W?{_CLOCK}"),
)
_LOOKED_AT = 200
"""Characters of a line in which its time is looked for; lines of JSON may begin with other fields."""

_NS = 1_000_000_000
_QUARTER_NS = 900 * _NS


def time_of(line: str, began: datetime, length_ns: int) -> int | None:
    """ns since the run began; None for a line without a time, or with one that is not of this run.

    began: with its time zone.  length_ns: of the run; a minute before it and ten after it are of the run, too."""
    text = line[:_LOOKED_AT]
    for form in _FORMS:
        if (found := form.search(text)) is not None:
            at_ns = _since(found.groupdict(), began)
            if at_ns is not None and (fitted := _fitted(at_ns, length_ns, moved=found.groupdict().get("z") is None)):
                return fitted[0]
    return None


def _since(part: dict[str, str | None], began: datetime) -> int | None:
    fraction = int((part.get("f") or "0").ljust(9, "0"))
    base = round(began.timestamp() * 1e6) * 1000
    if unix := part.get("unix"):
        return int(unix) * _NS + fraction - base
    if unix_ms := part.get("unix_ms"):
        return int(unix_ms) * 1_000_000 - base
    month = part.get("mon")
    zone = _zone(part.get("z"))
    here = began.astimezone(zone)
    try:
        at = datetime(
            int(part.get("y") or here.year),
            _MONTHS[month] if month else int(part.get("mo") or here.month),
            int(part.get("d") or here.day),
            int(part["h"] or 0),
            int(part["m"] or 0),
            int(part["s"] or 0),
            tzinfo=zone,
        )
    except ValueError:
        return None
    return round(at.timestamp()) * _NS + fraction - base


def _zone(text: str | None) -> timezone:
    if text is None or not text[1:].replace(":", "").isdigit():
        return UTC
    sign = -1 if text[0] == "-" else 1
    digits = text[1:].replace(":", "")
    return timezone(sign * timedelta(hours=int(digits[:2]), minutes=int(digits[2:])))


def _fitted(at_ns: int, length_ns: int, *, moved: bool) -> tuple[int] | None:
    """The time, if it is of the run; else the one a few quarters of an hour away that is."""
    if -60 * _NS <= at_ns <= length_ns + 600 * _NS:
        return (at_ns,)
    if not moved or abs(at_ns) > 26 * 3600 * _NS:
        return None
    near = at_ns - round((at_ns - length_ns / 2) / _QUARTER_NS) * _QUARTER_NS
    return (near,) if -60 * _NS <= near <= length_ns + 60 * _NS else None
