"""Waiting for a state in another process, thread or engine, with patience for a machine under heavy load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 300.0


def until(condition: Callable[[], object], limit_s: float = PATIENCE_S) -> None:
    """Fails if the condition does not come true in time."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true within {limit_s:g} s"
        time.sleep(0.01)


async def eventually(condition: Callable[[], object], limit_s: float = PATIENCE_S, every_s: float = 0.01) -> None:
    """`until` for a test whose own loop has to go on meanwhile."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - what is waited for happens elsewhere
            await asyncio.sleep(every_s)


def state_letter(pid: int) -> str:
    """The state of a process as a letter of proc(5); "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_alive(pid: int) -> bool:
    """Whether the process runs; a corpse that its parent has not collected does not."""
    return state_letter(pid) not in ("", "Z", "X")
