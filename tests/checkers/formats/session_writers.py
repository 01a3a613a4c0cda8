"""Writes histories by session in the formats of the field, for tests.

A history is a list of sessions.  A session is a list of transactions, each a text such as "w x 1, r y 0": one letter
names a key, and 0 is the initial state.  A transaction that begins with "!" was aborted.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

Sessions = Sequence[Sequence[str]]

_NEVER_WRITTEN = 0xBEBEEBEE


def operations(transaction: str) -> list[tuple[str, int, int]]:
    """(r or w, key, value)."""
    parts = [each.split() for each in transaction.removeprefix("!").split(",")]
    return [(f, ord(key) - ord("a"), int(value)) for f, key, value in parts]


def numbered(sessions: Sessions) -> Iterator[tuple[int, int, str]]:
    """(session, number of the transaction, transaction)."""
    number = 0
    for session, transactions in enumerate(sessions):
        for transaction in transactions:
            number += 1
            yield session, number, transaction


def dbcop(sessions: Sessions) -> bytes:
    def text(words: str) -> bytes:
        return struct.pack("<Q", len(words)) + words.encode()

    out = struct.pack("<5Q", 0, len(sessions), 9, 9, 9) + text("ours")
    out += text("2026-01-01T00:00:00+00:00") * 2 + struct.pack("<Q", len(sessions))
    for transactions in sessions:
        out += struct.pack("<Q", len(transactions))
        for transaction in transactions:
            succeeded = not transaction.startswith("!")
            events = operations(transaction)
            out += struct.pack("<Q", len(events))
            for f, key, value in events:
                out += struct.pack("<?QQ?", f == "w", key, value, succeeded)
            out += struct.pack("<?", succeeded)
    return out


def plume(sessions: Sessions) -> bytes:
    lines = []
    for session, number, transaction in numbered(sessions):
        name = -1 if transaction.startswith("!") else number
        lines += [f"{f}({key},{value},{session},{name})\n" for f, key, value in operations(transaction)]
    return "".join(lines).encode()


def awdit(sessions: Sessions) -> bytes:
    """AWDIT's text has no aborted transactions, and its initial state is written by a transaction."""
    keys = sorted({key for _, _, transaction in numbered(sessions) for _, key, _ in operations(transaction)})
    initial = "".join(f"w {key} 0\n" for key in keys)
    texts = [
        "-----\n".join("".join(f"{f} {k} {v}\n" for f, k, v in operations(transaction)) for transaction in transactions)
        for transactions in sessions
    ]
    return "=====\n".join([initial, *texts]).encode()


def chronos(sessions: Sessions, stamps: dict[int, tuple[int, int]] | None = None) -> bytes:
    """stamps: number of a transaction -> its begin and end."""
    rows = []
    for session, number, transaction in numbered(sessions):
        begin, end = (stamps or {}).get(number, (2 * number, 2 * number + 1))
        ops = [{"t": f, "k": key, "v": value or None} for f, key, value in operations(transaction)]
        rows.append({"tid": number, "sid": session, "sts": {"p": begin, "l": 0}, "cts": {"p": end, "l": 0}, "ops": ops})
    return json.dumps(rows).encode()


def cobra(sessions: Sessions, folder: Path, *, stamped: bool = False) -> None:
    """Return a log for each session; a time stamp follows the ends of transactions if `stamped`."""
    logs: dict[int, bytes] = {}
    stamp = struct.pack(">q", 7) if stamped else b""
    for session, number, transaction in numbered(sessions):
        out = b"S" + struct.pack(">q", number) + stamp
        for f, key, value in operations(transaction):
            write_id = 1000 * (key + 1) + value if value else _NEVER_WRITTEN
            if f == "w":
                out += b"W" + struct.pack(">3q", write_id, key, value)
            else:
                out += b"R" + struct.pack(">4q", _NEVER_WRITTEN, write_id, key, value)
        out += (b"A" if transaction.startswith("!") else b"C") + struct.pack(">q", number) + stamp
        logs[session] = logs.get(session, b"") + out
    for session, content in logs.items():
        (folder / f"T{session}.log").write_bytes(content)
