"""The canary: objects in the harness' own process.  Its runs must be judged valid, and invalid with any planted bug.

It tests the harness itself, from recorder to report: it has no nodes, no faults and no elections.  One process contains
an object of every kind that a workload uses, so an answer takes microseconds and measurements show the cost of the
harness alone.  `Objects` has one method per function (`system_under_test/functions.py`); each method takes effect
atomically, between two turns of the event loop.  A planted bug affects about one in `odds` requests of its kind
(`canary.toml`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

from checkers.base.history import Type
from system_under_test.client import Outcome, Placement, Request
from system_under_test.functions import FUNCTIONS, arguments, outcome
from system_under_test.subject import Bug, planted_bugs
from system_under_test.system import System

LEASE_MS = 200
_BUGS = planted_bugs(Path(__file__).with_name("canary.toml"))["canary"]
INVENTED = 10**12
"""A value that no client writes."""

Steps = list[list[Any]]


class Objects:
    """All objects of one run.

    bug: name of the active planted bug; None for none
    """

    def __init__(self, bug: str | None, rng: Random) -> None:
        self._bug = bug
        self._rng = rng
        self._register: dict[str, int | None] = {}
        self._before: dict[str, int | None] = {}
        self._set: defaultdict[str, list[int]] = defaultdict(list)
        self._sum: defaultdict[str, int] = defaultdict(int)
        self._list: defaultdict[str, list[int]] = defaultdict(list)
        self._text: defaultdict[str, str] = defaultdict(str)
        self._held: set[str] = set()
        self._leased_until_s: defaultdict[str, float] = defaultdict(float)
        self._token: defaultdict[str, int] = defaultdict(int)
        self._token_written: defaultdict[str, int] = defaultdict(int)
        self._balance: dict[str, int] = {}
        self._last_id = 0

    def _strikes(self, *bugs: str) -> bool:
        return self._bug in bugs and self._rng.randrange(_BUGS[self._bug].odds) == 0

    def create(self, key: str = "") -> None:
        return None

    # ---- registers -----------------------------------------------------------------------------------------------

    def read(self, key: str) -> int | None:
        if key in self._before and self._strikes("stale", "stale-transaction"):
            return self._before[key]
        return INVENTED if self._strikes("invent") else self._register.get(key)

    def write(self, key: str, value: int) -> None:
        if self._strikes("lose"):
            return
        self._before[key] = self._register.get(key)
        self._register[key] = value

    def cas(self, key: str, expected: int, new: int) -> bool:
        if self._register.get(key) != expected and not self._strikes("cas-anyway"):
            return False
        self.write(key, new)
        return True

    # ---- sets, counters, ids -------------------------------------------------------------------------------------

    def add(self, key: str, value: int) -> None:
        if not self._strikes("lose-element"):
            self._set[key].append(value)

    def members(self, key: str) -> list[int]:
        return list(self._set[key]) + ([INVENTED] if self._strikes("invent") else [])

    def increment(self, key: str, amount: int) -> None:
        if not self._strikes("lose-amount"):
            self._sum[key] += amount

    def total(self, key: str) -> int:
        return self._sum[key]

    def generate(self, key: str) -> int:
        if not self._strikes("same-id"):
            self._last_id += 1
        return self._last_id

    # ---- queues and logs -----------------------------------------------------------------------------------------

    def enqueue(self, key: str, value: int) -> None:
        if not self._strikes("lose-value", "lose-message"):
            self._list[key].append(value)

    def dequeue(self, key: str) -> int | None:
        values = self._list[key]
        return values.pop(0) if values else None

    def drain(self, key: str) -> list[int]:
        values, self._list[key] = self._list[key], []
        return values

    def append(self, key: str, value: int) -> int:
        self._list[key].append(value)
        offset = len(self._list[key]) - 1
        if self._strikes("lose-entry"):
            self._list[key].pop()
        return offset

    def entries(self, key: str) -> list[int]:
        return list(self._list[key])

    # ---- strings -------------------------------------------------------------------------------------------------

    def put(self, key: str, text: str) -> None:
        self._text[key] = text

    def append_text(self, key: str, text: str) -> None:
        if not self._strikes("lose-text"):
            self._text[key] += text

    def get(self, key: str) -> str:
        return self._text[key]

    # ---- locks ---------------------------------------------------------------------------------------------------

    def acquire(self, key: str) -> bool:
        if key in self._held and not self._strikes("two-holders"):
            return False
        self._held.add(key)
        return True

    def acquire_lease(self, key: str) -> int | None:
        """Acquire a lease.  The lease is never released; it expires."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._leased_until_s[key] and not self._strikes("two-leases"):
            return None
        self._leased_until_s[key] = now_s + LEASE_MS / 1e3
        return LEASE_MS

    def release(self, key: str) -> None:
        self._held.discard(key)

    def acquire_token(self, key: str) -> int | None:
        if not self.acquire(key):
            return None
        if not self._strikes("same-token"):
            self._token[key] += 1
        return self._token[key]

    def fenced_write(self, key: str, token: int) -> bool:
        if token < self._token_written[key]:
            return False
        self._token_written[key] = token
        return True

    # ---- accounts ------------------------------------------------------------------------------------------------

    def open_account(self, account: str, balance: int) -> None:
        self._balance.setdefault(account, balance)

    def transfer(self, source: str, target: str, amount: int) -> bool:
        if self._balance[source] < amount:
            return False
        self._balance[source] -= amount
        if not self._strikes("lose-transfer"):
            self._balance[target] += amount
        return True

    def balances(self) -> dict[str, int]:
        return dict(self._balance)

    # ---- transactions --------------------------------------------------------------------------------------------

    def transact_lists(self, steps: Sequence[Sequence[Any]]) -> Steps:
        done: Steps = []
        for f, key, value in steps:
            if f == "r":
                done.append([f, key, list(self._list[key]) or None])
                continue
            if self._strikes("lost-update"):
                del self._list[key][-1:]
            self._list[key].append(value)
            done.append([f, key, value])
        return done

    def transact_registers(self, steps: Sequence[Sequence[Any]]) -> Steps:
        done: Steps = []
        for f, key, value in steps:
            if f == "r":
                hidden = self._strikes("long-fork")
                done.append([f, key, None if hidden else self.read(key)])
            else:
                self.write(key, value)
                done.append([f, key, value])
        return done


_SHARED: dict[str, Objects] = {}


class CanaryClient:
    """A `ProcessClient` of the objects.

    functions: `f` -> function that executes it; an `f` that is missing here is itself the name of a function
    """

    def __init__(self, objects: Objects, functions: Mapping[str, str]) -> None:
        self._objects = objects
        self._functions = functions

    async def invoke(self, request: Request, timeout_s: float) -> Outcome:
        # Yield before and after the effect, so that operations overlap.
        await asyncio.sleep(0)
        function = self._functions.get(request.f, request.f)
        method = getattr(self._objects, function, None)
        if method is None:
            return Outcome(Type.FAIL, error=f"the canary knows no {function}", node="canary")
        answer = method(*arguments(function, request))
        await asyncio.sleep(0)
        return outcome(function, request, answer, "canary")

    async def close(self) -> None:
        return None


def connect(
    placement: Placement, peers: Mapping[str, str], config: Mapping[str, Any], shared: dict[str, Any]
) -> CanaryClient:
    """Return a client of the objects of config["run"], which all client nodes share."""
    objects = _SHARED.setdefault(config["run"], Objects(config["bug"], Random(f"{config['seed']}/canary")))
    return CanaryClient(objects, config.get("functions") or {})


class Canary(System):
    name = "canary"
    summary = "objects of every kind in the harness' own process: its test of itself"
    in_process = True
    client_module = __name__
    bugs: Mapping[str, Bug] = _BUGS
    functions = frozenset(name for name in FUNCTIONS if hasattr(Objects, name))

    def client_config(self) -> Mapping[str, Any]:
        return {"run": uuid4().hex}
