"""Recognises the formats of `session_files.py` by the first bytes of a file, without importing what reads them."""

from __future__ import annotations

import re
import struct
from pathlib import Path

PLUME, AWDIT, CHRONOS, DBCOP, COBRA_LOG = "Plume text", "AWDIT text", "Chronos", "DBCop", "Cobra"

PARAMETERS = struct.Struct("<5Q")
"""What a history of DBCop begins with."""
LENGTH = struct.Struct("<Q")

COBRA_RECORDS = {b"S"[0]: 8, b"C"[0]: 8, b"A"[0]: 8, b"W"[0]: 24, b"R"[0]: 32}
"""The tags of Cobra's records -> the bytes after the tag: start, commit and abort of a transaction, write, read."""
COBRA_RECORDS_STAMPED = {tag: size + (8 if chr(tag) in "SC" else 0) for tag, size in COBRA_RECORDS.items()}

_PLUME_HINT = re.compile(rb"[rw]\(\d")
_AWDIT_HINT = re.compile(rb"[rw][ \t]+\d+[ \t]+\d+[ \t]*(\r?\n|$)")
_CHRONOS_HINT = re.compile(rb'\[\s*\{(\s*"(tid|sid|sts|cts)"\s*:|[^\[\]]*"ops"\s*:)')
_A_TIME = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d")
_TEXT_MAX = 1 << 16
_LOOK_AHEAD = 64


def session_format(content: bytes) -> str | None:
    """The name of the format of a file with this beginning; None if it is none of them."""
    head = content[:65536].lstrip(b"\xef\xbb\xbf \t\r\n")
    if _PLUME_HINT.match(head):
        return PLUME
    if _AWDIT_HINT.match(head):
        return AWDIT
    if _CHRONOS_HINT.match(head):
        return CHRONOS
    if _is_dbcop(content):
        return DBCOP
    return COBRA_LOG if is_cobra_log(content) else None


def _is_dbcop(content: bytes) -> bool:
    """Whether parameters and a text are followed by a time."""
    if len(content) < PARAMETERS.size + 3 * LENGTH.size:
        return False
    (info,) = LENGTH.unpack_from(content, PARAMETERS.size)
    at = PARAMETERS.size + LENGTH.size + info
    if info > _TEXT_MAX or at + LENGTH.size > len(content):
        return False
    (length,) = LENGTH.unpack_from(content, at)
    return 10 <= length <= 64 and _A_TIME.match(content, at + LENGTH.size) is not None


def is_cobra_log(content: bytes) -> bool:
    """Whether this is the beginning of a log of Cobra: whole records, the first of which starts a transaction."""
    return cobra_records(content, _LOOK_AHEAD) is not None


def cobra_records(content: bytes, records_max: int) -> dict[int, int] | None:
    """The sizes of records, without or with time stamps, that fit the first records; None if neither does."""
    if content[:1] != b"S" or len(content) < 18 or b"\x00" not in content[:64]:
        return None
    for sizes in (COBRA_RECORDS, COBRA_RECORDS_STAMPED):
        at = count = 0
        while at < len(content) and count < records_max and content[at] in sizes:
            at += 1 + sizes[content[at]]
            count += 1
        if count == records_max or at == len(content) or (at > len(content) and count > 1):
            return sizes
    return None


def cobra_logs(folder: Path) -> list[Path]:
    """The logs of a folder, in order of their names, if any is a log of Cobra; there is one for each session.

    The others may be damaged: they are not passed over, because transactions that are missing look like violations.
    """
    logs = [path for path in sorted(folder.glob("*.log")) if path.is_file()]
    return logs if any(is_cobra_log(_head(path)) for path in logs) else []


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LOOK_AHEAD * (1 + max(COBRA_RECORDS_STAMPED.values())))
