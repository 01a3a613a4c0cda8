"""`kv`: strings are put, appended to and read under keys."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import ClassVar

from system_under_test.client import Placement, Request
from workloads.generators import Call, Generator, Mix, Turn, reads_of, reserve, uniform
from workloads.workload import Workload


def _text(turn: Turn) -> str:
    return json.dumps(f"{turn.fresh()} ")


class KeyValue(Workload):
    name = "kv"
    summary = "strings are put, appended to and read under keys"
    checkers: ClassVar[tuple[str, ...]] = ("kv",)
    functions: ClassVar[Mapping[str, str]] = {"get": "get", "put": "put", "append": "append_text"}
    reads: ClassVar[frozenset[str]] = frozenset({"get"})
    writes: ClassVar[frozenset[str]] = frozenset({"put", "append"})
    real_test = "Appends of several threads to one key overlap, and reads show in which order they happened."

    def generator(self, placement: Placement) -> Generator:
        key = uniform(self.names)
        get = Call(lambda turn: Request("get", key(turn)))
        put = Call(lambda turn: Request("put", key(turn), payload=_text(turn)))
        append = Call(lambda turn: Request("append", key(turn), payload=_text(turn)))
        return reserve(placement, readers=get, others=Mix(((0.4, get), (0.2, put), (0.4, append))))

    def final(self) -> Sequence[Request]:
        return reads_of("get", self.names)
