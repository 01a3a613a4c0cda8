"""Clients that behave well and badly, hosted by the agent under test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from checkers.base.history import Type
from system_under_test.client import Outcome, Placement, Request

CLOSED: list[int] = []
"""Threads whose client was closed, in order."""


MET: set[int] = set()
"""Threads that were ordered to meet the others."""


def _until_it_may_end(folder: Path) -> Iterator[None]:
    """Makes the file `began`, and goes on until there is a file `end`."""
    (folder / "began").touch()
    while not (folder / "end").exists():
        yield


class Scripted:
    """`f` says how to behave; `value` comes back as the answer, `node` counts what this client was invoked with."""

    def __init__(self, placement: Placement, config: Mapping[str, Any]) -> None:
        self.placement = placement
        self.config = config
        self.invoked = 0

    async def invoke(self, request: Request, timeout_s: float) -> Outcome:
        self.invoked += 1
        match request.f:
            case "sleep":
                await asyncio.sleep(float(request.payload or 0))
            case "raise":
                raise ZeroDivisionError("a bug in the client")
            case "meet":
                MET.add(self.placement.thread)
                while len(MET) < int(request.payload or 0):  # noqa: ASYNC110 - it holds up no other client
                    await asyncio.sleep(0.01)
            case "block":
                for _ in _until_it_may_end(Path(str(request.payload))):
                    time.sleep(0.01)  # noqa: ASYNC251 - this client is meant to misbehave
            case "compute":
                for _ in _until_it_may_end(Path(str(request.payload))):
                    sum(range(1000))
            case "print":
                print("a stray print that must not get among the frames", flush=True)
            case "nonsense":
                return None  # type: ignore[return-value]
        return Outcome(Type.OK, value=request.value, payload=self.config.get("say"), node=f"invoked-{self.invoked}")

    async def close(self) -> None:
        CLOSED.append(self.placement.thread)


def connect(
    placement: Placement, peers: Mapping[str, str], config: Mapping[str, Any], shared: dict[str, Any]
) -> Scripted:
    if config.get("refuse"):
        raise RuntimeError("this configuration is refused")
    return Scripted(placement, config)
