"""Jepsen's histories: EDN operations (`history.edn`) and the log lines of `jepsen.util`.

Both become events; index is the position in the text, whatever `:index` said (some tools leave gaps).  Values that are
no integers go into `payload` as JSON.  A nemesis' process (a keyword) becomes NEMESIS, as are its operations.

What the texts leave open and how it is read: a value `[a b]` of a cas is (expected, new); `[k v]` of another operation
is a key and its value only if the map says so with `:key` (tuples of `independent` tests write `[k v]` themselves, and
no text tells them apart from a list, so a caller asks for it with `keyed=True`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from checkers.formats.edn import Form, read_forms, read_items
from checkers.history import NEMESIS, Event, MalformedHistory, Type

_TYPES = {"invoke": Type.INVOKE, "ok": Type.OK, "fail": Type.FAIL, "info": Type.INFO}
_LOG_LINE = re.compile(r"^INFO\s+jepsen\.util\s+-\s+(?P<operation>\S+\s+:\w+\s+:\S+(?:\s+.*)?)$")
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class Line:
    """An event and the line of the text it stands on (from 1), so that complaints can name it."""

    number: int
    event: Event


def read_edn(text: str, *, keyed: bool = False) -> Iterator[Line]:
    """Events of an EDN history: maps one after another, or one vector or list of maps."""
    return _events(_operations(read_items(text)), keyed)


def read_log_lines(text: str, *, keyed: bool = False) -> Iterator[Line]:
    """Events of a Jepsen log; lines that are no operations are passed over."""
    return _events(_logged(text), keyed)


def _operations(forms: Iterable[Form]) -> Iterator[tuple[int, dict[str, Any]]]:
    for form in forms:
        if not isinstance(form.value, dict):
            raise MalformedHistory(f"line {form.line}: an operation must be a map, not {form.value!r:.40}")
        yield form.line, form.value


def _logged(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        match = _LOG_LINE.match(line.rstrip())
        if match is None:
            if line.startswith("INFO") and "jepsen.util" in line and "\t:" in line:
                raise MalformedHistory(f"line {number}: an operation is cut off: {line!r:.60}")
            continue
        try:
            values = [form.value for form in read_forms(match["operation"])]
        except MalformedHistory as damage:
            raise MalformedHistory(f"line {number}: {str(damage).partition(': ')[2]}") from damage
        process, type_, f, *rest = values
        yield number, {"process": process, "type": type_, "f": f, "value": rest[0] if rest else None}


def _events(operations: Iterable[tuple[int, dict[str, Any]]], keyed: bool) -> Iterator[Line]:
    for index, (line, operation) in enumerate(operations):
        type_ = _TYPES.get(str(operation.get("type")))
        if type_ is None:
            raise MalformedHistory(f"line {line}: an operation's :type must be invoke, ok, fail or info")
        value, key = operation.get("value"), operation.get("key")
        if keyed and key is None and isinstance(value, list) and len(value) == 2:
            key, value = value
        number, number2, payload = _columns(str(operation.get("f", "txn")), value)
        yield Line(
            line,
            Event(
                index=index,
                time_ns=_integer(operation.get("time"), 0),
                process=_process(operation, line),
                type=type_,
                f=str(operation.get("f", "txn")),
                key=None if key is None else str(key),
                value=number,
                value2=number2,
                payload=payload,
                error=_error(operation, value),
            ),
        )


def _columns(f: str, value: Any) -> tuple[int | None, int | None, str | None]:
    """(value, value2, payload) for one EDN value."""
    if value is None:
        return None, None, None
    if _is_int64(value):
        return value, None, None
    if f == "cas" and isinstance(value, list) and len(value) == 2 and all(v is None or _is_int64(v) for v in value):
        return value[0], value[1], None
    return None, None, json.dumps(value)


def _is_int64(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in _INT64


def _process(operation: dict[str, Any], line: int) -> int:
    process = operation.get("process", 0)
    if _is_int64(process):
        return int(process)
    if isinstance(process, str):
        return NEMESIS
    raise MalformedHistory(f"line {line}: :process must be a number or a keyword, not {process!r:.40}")


def _integer(value: Any, default: int) -> int:
    return int(value) if _is_int64(value) else default


def _error(operation: dict[str, Any], value: Any) -> str | None:
    error = operation.get("error")
    if error is None and value == "timed-out":
        error = value
    return None if error is None else error if isinstance(error, str) else json.dumps(error)
