"""The canary's registers and the clients that share them.

One process holds the registers, so that an answer takes microseconds and the harness itself is what is measured.
The switches: `stale` sometimes answers a read with the value before the last one; `lose` sometimes acknowledges a write
that it never makes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from checkers.history import CREATE, Type
from system_under_test.client import Outcome, Placement, Request

ODDS = 50
"""A switch that is on strikes about once in so many requests of its kind."""


@dataclass
class Registers:
    bug: str | None
    rng: Random
    value: dict[str, int | None] = field(default_factory=dict)
    before: dict[str, int | None] = field(default_factory=dict)

    def write(self, key: str, value: int | None) -> None:
        if self.bug == "lose" and self.rng.randrange(ODDS) == 0:
            return
        self.before[key] = self.value.get(key)
        self.value[key] = value

    def read(self, key: str) -> int | None:
        if self.bug == "stale" and key in self.before and self.rng.randrange(ODDS) == 0:
            return self.before[key]
        return self.value.get(key)


_SHARED: dict[str, Registers] = {}


class CanaryClient:
    def __init__(self, registers: Registers, node: str) -> None:
        self._registers = registers
        self._node = node

    async def invoke(self, request: Request, timeout_s: float) -> Outcome:
        # Give way before and after the effect, so that operations really overlap.
        await asyncio.sleep(0)
        key = request.key or ""
        if request.f == "write":
            self._registers.write(key, request.value)
            await asyncio.sleep(0)
            return Outcome(Type.OK, request.value, node=self._node)
        if request.f == "read":
            value = self._registers.read(key)
            await asyncio.sleep(0)
            return Outcome(Type.OK, value, node=self._node)
        if request.f == CREATE:
            return Outcome(Type.OK, node=self._node)
        return Outcome(Type.FAIL, error=f"the canary knows no {request.f}", node=self._node)

    async def close(self) -> None:
        return None


def connect(placement: Placement, peers: Mapping[str, str], config: Mapping[str, Any]) -> CanaryClient:
    """A client of the registers named by config["run"]; all clients of one run share them."""
    registers = _SHARED.setdefault(config["run"], Registers(config["bug"], Random(f"{config['seed']}/canary")))
    return CanaryClient(registers, "canary")
