"""Clients that behave well and badly, hosted by the agent under test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from checkers.base.history import Type
from system_under_test.client import Outcome, Placement, Request

CLOSED: list[int] = []
"""Threads whose client was closed, in order."""


class Scripted:
    """`f` says how to behave; `value` comes back as the answer, `node` tells how often this client was asked."""

    def __init__(self, placement: Placement, config: Mapping[str, Any]) -> None:
        self.placement = placement
        self.config = config
        self.asked = 0

    async def invoke(self, request: Request, timeout_s: float) -> Outcome:
        self.asked += 1
        match request.f:
            case "sleep":
                await asyncio.sleep(float(request.payload or 0))
            case "raise":
                raise ZeroDivisionError("a bug in the client")
            case "block":
                time.sleep(float(request.payload or 0))  # noqa: ASYNC251 - this client is meant to misbehave
            case "compute":
                until = time.monotonic() + float(request.payload or 0)
                while time.monotonic() < until:
                    sum(range(1000))
            case "print":
                print("a stray print that must not get among the frames", flush=True)
            case "nonsense":
                return None  # type: ignore[return-value]
        return Outcome(Type.OK, value=request.value, payload=self.config.get("say"), node=f"asked-{self.asked}")

    async def close(self) -> None:
        CLOSED.append(self.placement.thread)


def connect(placement: Placement, peers: Mapping[str, str], config: Mapping[str, Any]) -> Scripted:
    if config.get("refuse"):
        raise RuntimeError("this configuration is refused")
    return Scripted(placement, config)
