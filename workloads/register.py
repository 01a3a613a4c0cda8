"""`register`: reads and writes of a few registers, the workload that shows stale reads and lost writes.

Every written value is unique within its key, for three reasons: a stale answer can be told from a repeated one; an
unchanged write (which Kafka answers without a record) never occurs; and linearizability is decided in linear time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

from checkers.history import CREATE
from system_under_test.client import Placement, Request

WRITE_SHARE = 0.5
"""Of the requests of a process that both reads and writes."""


class _Generator:
    def __init__(self, workload: Register, placement: Placement, rng: Random) -> None:
        self._workload = workload
        self._reads_only = placement.reads_only
        self._rng = rng

    def next(self) -> Request:
        key = self._rng.choice(self._workload.names)
        if self._reads_only or self._rng.random() >= WRITE_SHARE:
            return Request("read", key)
        return Request("write", key, next(self._workload.fresh[key]))


@dataclass
class Register:
    """key_count registers named k0, k1, ...; values count up from 1 within each key, over all processes."""

    key_count: int
    name: str = "register"
    summary: str = "reads and writes of single registers; every value is written once"
    checkers: tuple[str, ...] = ("linearizability",)
    names: tuple[str, ...] = field(init=False)
    fresh: dict[str, Iterator[int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.key_count < 1:
            raise ValueError(f"a register workload needs at least one key, not {self.key_count}")
        self.names = tuple(f"k{i}" for i in range(self.key_count))
        self.fresh = {name: count(1) for name in self.names}

    def keys(self) -> Sequence[str]:
        return self.names

    def set_up(self) -> Sequence[Request]:
        return [Request(CREATE, key) for key in self.names]

    def generator(self, placement: Placement, rng: Random) -> _Generator:
        return _Generator(self, placement, rng)

    def final(self) -> Sequence[Request]:
        return [Request("read", key) for key in self.names]
