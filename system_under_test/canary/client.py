"""The clients of the canary: all clients of one run share its objects, in the harness' own process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

from checkers.base.history import Type
from system_under_test.canary.objects import Objects
from system_under_test.client import Outcome, Placement, Request
from system_under_test.functions import arguments, outcome

_NODE = "canary"
_SHARED: dict[str, Objects] = {}


class CanaryClient:
    """functions: which function serves an `f`; an `f` that is not named serves itself."""

    def __init__(self, objects: Objects, functions: Mapping[str, str]) -> None:
        self._objects = objects
        self._functions = functions

    async def invoke(self, request: Request, timeout_s: float) -> Outcome:
        # Give way before and after the effect, so that operations really overlap.
        await asyncio.sleep(0)
        function = self._functions.get(request.f, request.f)
        method = getattr(self._objects, function, None)
        if method is None:
            return Outcome(Type.FAIL, error=f"the canary knows no {function}", node=_NODE)
        answer = method(*arguments(function, request))
        await asyncio.sleep(0)
        return outcome(function, request, answer, _NODE)

    async def close(self) -> None:
        return None


def connect(
    placement: Placement, peers: Mapping[str, str], config: Mapping[str, Any], shared: dict[str, Any]
) -> CanaryClient:
    """A client of the objects named by config["run"]."""
    objects = _SHARED.setdefault(config["run"], Objects(config["bug"], Random(f"{config['seed']}/canary")))
    return CanaryClient(objects, config.get("functions") or {})
