"""An asyncio loop whose clock jumps to the next timer instead of waiting for it: no machine is too slow for its tests.

A test module takes it with `pytestmark = pytest.mark.virtual_time` (tests/conftest.py); `run` takes it for one
coroutine.  What the tests talk to has to live in the same loop: objects in memory, or servers and clients on loopback.
Threads and other processes go by real time, and the clock would overtake them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

GRACE_S = 0.01
"""Real time in which the kernel hands over what was written to a socket, before the clock jumps."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` begins at 0.  A loop in which every task waits for something that never happens fails."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._really_select = self._selector.select  # type: ignore[attr-defined]
        self._own_files = len(self._selector.get_map())  # type: ignore[attr-defined]
        self._selector.select = self._select  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._now_s

    def _select(self, timeout_s: float | None) -> Any:
        has_sockets = len(self._selector.get_map()) > self._own_files  # type: ignore[attr-defined]
        if timeout_s is not None and timeout_s <= 0:
            return self._really_select(0)
        if ready := self._really_select(GRACE_S if has_sockets else 0):
            return ready
        assert timeout_s is not None, "every task waits for something that will never happen"
        self._now_s += timeout_s
        return self._really_select(0)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of `work`, on a virtual loop of its own."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()
