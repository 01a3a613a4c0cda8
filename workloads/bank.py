"""`bank`: money moves between accounts, and all balances are read at once.

Transfers neither make nor destroy money, so every read shows the same total where reads are snapshots.  Accounts are
few, so that transfers meet; amounts are often larger than a balance, so that some are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import ClassVar

from checkers.base.history import CREATE
from system_under_test.client import Placement, Request
from workloads.generators import Call, Generator, Mix, Turn, reserve
from workloads.transactions import DATABASE
from workloads.workload import Workload

BALANCE = 10
"""Of each account at first."""
AMOUNT_MAX = 6
TRANSFER_SHARE = 0.6


class Bank(Workload):
    """key_count accounts, at least two."""

    name = "bank"
    summary = "money moves between accounts, and all balances are read at once"
    checkers: ClassVar[tuple[str, ...]] = ("bank",)
    functions: ClassVar[Mapping[str, str]] = {CREATE: "open_account", "transfer": "transfer", "read": "balances"}
    reads: ClassVar[frozenset[str]] = frozenset({"read"})
    writes: ClassVar[frozenset[str]] = frozenset({"transfer"})
    real_test = "Transfers between the same accounts overlap, and balances are read while they happen."
    unique_values = False
    prefix = "a"

    @staticmethod
    def objects(key_count: int) -> int:
        return max(2, key_count)

    def keys(self) -> Sequence[str]:
        return [DATABASE]

    def set_up(self) -> Sequence[Request]:
        return [Request(CREATE, DATABASE, payload=json.dumps([account, BALANCE])) for account in self.names]

    def generator(self, placement: Placement) -> Generator:
        transfer, read = Call(self._transfer), Call(lambda turn: Request("read", DATABASE))
        mixed = Mix(((TRANSFER_SHARE, transfer), (1 - TRANSFER_SHARE, read)))
        return reserve(placement, readers=read, others=mixed)

    def final(self) -> Sequence[Request]:
        return [Request("read", DATABASE)]

    def _transfer(self, turn: Turn) -> Request:
        source, target = turn.rng.sample(self.names, 2)
        return Request("transfer", DATABASE, payload=json.dumps([source, target, turn.rng.randint(1, AMOUNT_MAX)]))
