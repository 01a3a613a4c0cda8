"""The one reader of the small files of a run.

A file is decoded into the types of this room, strictly.  Damage has one kind of error, BrokenFile, which names the file
and the field: no JSON, a missing field, a value of another type, or an integer beyond 64 bits.  Nothing is replaced by
a default, with one exception: older formats recorded less.  A run of such a format gets the defaults of the types for
what it lacks, and it is unknown at best (`base/ledger.py`).

Unknown fields are ignored, because later versions may record more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, cached_property
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from checkers.record.copies import Copy
from checkers.record.faults import CHANGES_MEMBERS, FaultRecord
from checkers.record.files import BrokenFile, regular
from checkers.record.header import Header
from checkers.record.outcome import RunOutcome

TEST, OUTCOME, FAULTS, COPIES_INDEX = "test.json", "outcome.json", "faults.json", "copies.json"
"""Names of the small files of a run (results/README.md)."""

OLDEST = 0
"""The format of runs that name none."""
WHOLE_SINCE = 2
"""The first format whose records hold every field, except those that only some records have (`at_times.py`)."""
MEASURED_SINCE = 1
"""The first format whose faults were measured while they held."""
_STATES_OF_OLD_KINDS = {"pause": "stopped", "kill": "dead"}
"""Kinds of before.  Their records do not say which state was ordered."""

_LONG_INTEGER = re.compile(rb"\d{19}")
_T = TypeVar("_T")


class RunRecord:
    """The small files of one run, each read once, on first use.  Raises BrokenFile for one that cannot be used.

    A missing file is empty: the run was broken off before it was written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def header(self) -> Header | None:
        """test.json; None if there is none."""
        path = self.root / TEST
        raw = read_json(path)
        return None if raw is None and not path.exists() else decoded(TEST, raw, Header, _format_of(raw))

    @cached_property
    def format(self) -> int:
        """The format that test.json names; 0 without one."""
        return _format_of(read_json(self.root / TEST))

    @cached_property
    def outcome(self) -> RunOutcome | None:
        """outcome.json; None if the harness did not come to its end."""
        return self._read(OUTCOME, RunOutcome, _of_outcomes)

    @cached_property
    def faults(self) -> tuple[FaultRecord, ...]:
        """faults.json, in the order of the cards' numbers as they were played."""
        raw = read_json(self.root / FAULTS)
        return () if raw is None and not (self.root / FAULTS).exists() else faults_of(raw, self.format)

    @cached_property
    def copies(self) -> tuple[Copy, ...]:
        """copies.json."""
        return self._read(COPIES_INDEX, tuple[Copy, ...]) or ()

    def _read(self, name: str, type_: type[_T], migrate: Callable[[Any, int], None] | None = None) -> _T | None:
        path = self.root / name
        raw = read_json(path)
        if raw is None and not path.exists():
            return None
        if migrate is not None:
            migrate(raw, self.format)
        return decoded(name, raw, type_, self.format)


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if there is no such file.

    Raises BrokenFile if the file is not JSON, or not a regular file of bounded size."""
    try:
        text = regular(path).read_bytes()
        raw = msgspec.json.decode(text)
    except FileNotFoundError:
        return None
    except BrokenFile:
        raise
    except (ValueError, RecursionError) as problem:
        raise BrokenFile(f"{path.name} is not JSON ({problem})") from problem
    if _LONG_INTEGER.search(text) and (at := next(_beyond_64_bits(raw, ""), None)) is not None:
        raise BrokenFile(f"{path.name}: {at or 'its value'} is an integer beyond 64 bits")
    return raw


def decoded(name: str, raw: Any, type_: type[_T], format: int) -> _T:
    """A value of one of the record's types.  name: of the file.  raw: its JSON.  Raises BrokenFile."""
    lacking = next(_lacking(raw, type_, ""), None) if format >= WHOLE_SINCE else None
    if lacking is not None:
        raise BrokenFile(f"{name}: {lacking}, which every run of its format records")
    try:
        return msgspec.convert(raw, type_)
    except (msgspec.ValidationError, RecursionError, OverflowError) as problem:
        what, _, at = str(problem).partition(" - at ")
        raise BrokenFile(f"{name}: {_plain(at)}{what[:1].lower()}{what[1:]}".replace("`", "")) from problem


def faults_of(raw: Any, format: int) -> tuple[FaultRecord, ...]:
    """The records in the content of a faults.json.  raw: changed if an older version wrote it.  Raises BrokenFile."""
    _migrate_faults(raw, format)
    return decoded(FAULTS, raw, tuple[FaultRecord, ...], format)


def _plain(at: str) -> str:
    """A path of msgspec, as "`$[0].card.number`", in the form "[0].card.number: "."""
    place = at.strip("`").removeprefix("$").removeprefix(".")
    return f"{place}: " if place else ""


def _format_of(raw: Any) -> int:
    """The format that test.json names.  Whatever is no format counts as today's, of which most is demanded."""
    stated = raw.get("format", 0) if isinstance(raw, Mapping) else 0
    return stated if type(stated) is int and stated >= 0 else WHOLE_SINCE


# What other versions recorded otherwise.


def _migrate_faults(raw: Any, format: int) -> None:
    """The oldest runs hold neither measurements nor what they had to show, but two proofs.  They did not note either
    that a change of the members is one."""
    for record in raw if isinstance(raw, list) else ():
        if not isinstance(record, dict):
            continue
        kind = record["card"].get("kind") if isinstance(record.get("card"), dict) else None
        if kind == "membership" and isinstance(record.get("settings"), dict):
            record["settings"].setdefault(CHANGES_MEMBERS, True)
        if format < MEASURED_SINCE and "measured" not in record:
            record["measured"] = None
            record.setdefault("ordered", _ordered_once(kind, record.get("nodes")))


def _ordered_once(kind: object, nodes: object) -> dict[str, Any] | None:
    """What the two proofs of an old fault on processes had to show; None for other faults, which only cut links."""
    state = _STATES_OF_OLD_KINDS.get(str(kind))
    if state is None or not isinstance(nodes, list):
        return None
    return {"held": {"states": dict.fromkeys(nodes, state)}, "healed": {"states": dict.fromkeys(nodes, "running")}}


def _of_outcomes(raw: Any, format: int) -> None:
    """What did not happen was {} once, and whether a death was ordered had another name."""
    if not isinstance(raw, dict):
        return
    for name in ("recovery", "stopped", "coverage"):
        if raw.get(name) == {}:
            raw[name] = None
    for death in raw["deaths"] if isinstance(raw.get("deaths"), list) and format < WHOLE_SINCE else ():
        if isinstance(death, dict) and "bidden" in death:
            death.setdefault("ordered", death["bidden"])


# What is looked for before a value is decoded.


class _Field(NamedTuple):
    name: str
    type: Any
    demanded: bool


@cache
def _fields(type_: type) -> tuple[_Field, ...]:
    hints = get_type_hints(type_)
    return tuple(_Field(f.name, hints[f.name], not f.metadata.get("at times")) for f in fields(type_))


def _lacking(raw: Any, type_: Any, at: str) -> Iterator[str]:
    """Yields the fields that a record of this type must have and does not, each in words with its place."""
    if is_dataclass(type_):
        if not isinstance(raw, dict):
            return  # the decoder says so
        for name, of, demanded in _fields(type_):  # type: ignore[arg-type]
            if name in raw:
                yield from _lacking(raw[name], of, f"{at}.{name}" if at else name)
            elif demanded:
                yield f"{at or 'it'} lacks {name}"
    elif get_origin(type_) in (Union, UnionType):
        for each in get_args(type_):
            if is_dataclass(each) or get_origin(each) is tuple:
                yield from _lacking(raw, each, at)
    elif get_origin(type_) is tuple and isinstance(raw, list) and _holds_records(type_):
        for place, each in enumerate(raw):
            yield from _lacking(each, get_args(type_)[0], f"{at}[{place}]")
    elif get_origin(type_) is Mapping and isinstance(raw, dict) and _holds_records(type_):
        for key, each in raw.items():
            yield from _lacking(each, get_args(type_)[1], f"{at}.{key}")


@cache
def _holds_records(type_: Any) -> bool:
    return any(is_dataclass(each) for each in get_args(type_))


def _beyond_64_bits(raw: Any, at: str) -> Iterator[str]:
    if isinstance(raw, int):
        if not -(2**63) <= raw < 2**63:
            yield at
    elif isinstance(raw, list):
        for place, each in enumerate(raw):
            yield from _beyond_64_bits(each, f"{at}[{place}]")
    elif isinstance(raw, dict):
        for key, each in raw.items():
            yield from _beyond_64_bits(each, f"{at}.{key}" if at else str(key))
