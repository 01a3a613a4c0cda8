"""`shown-order`: registers of a system whose answers carry a position, such as a revision, a zxid or an LSN.

Every answer states the position of the state that it is about, so the checker replays the order instead of searching
for one.  A client that also has `digest` is asked for digests of replicas (`digests`): equal positions must have equal
ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from system_under_test.client import Placement, Request
from workloads.generators import Call, Generator, Mix, reads_of, uniform
from workloads.workload import Workload

WRITE_SHARE, DIGEST_SHARE = 0.45, 0.1


class ShownOrder(Workload):
    name = "shown-order"
    summary = "registers, each answer with the position that the system shows for it"
    checkers: ClassVar[tuple[str, ...]] = ("shown-order",)
    functions: ClassVar[Mapping[str, str]] = {"read": "read_shown", "write": "write_shown"}
    reads: ClassVar[frozenset[str]] = frozenset({"read"})
    writes: ClassVar[frozenset[str]] = frozenset({"write"})
    real_test = "Reads and writes of every key are answered with positions, by several servers."

    def generator(self, placement: Placement) -> Generator:
        key = uniform(self.names)
        read = Call(lambda turn: Request("read", key(turn)))
        write = Call(lambda turn: Request("write", key(turn), turn.fresh()))
        if placement.reads_only:
            return Mix(((1.0 - DIGEST_SHARE, read), (DIGEST_SHARE, self.another())))
        return Mix(((1 - WRITE_SHARE - DIGEST_SHARE, read), (WRITE_SHARE, write), (DIGEST_SHARE, self.another())))

    def another(self) -> Generator:
        key = uniform(self.names)
        return Call(lambda turn: Request("read", key(turn)))

    def final(self) -> Sequence[Request]:
        return reads_of("read", self.names)


class Digests(ShownOrder):
    name = "digests"
    summary = "registers with shown positions, and digests of every replica at equal positions"
    functions: ClassVar[Mapping[str, str]] = {**ShownOrder.functions, "digest": "digest"}
    reads: ClassVar[frozenset[str]] = frozenset({"read", "digest"})
    real_test = "Digests of one position are answered by several servers."

    def another(self) -> Generator:
        return Call(lambda turn: Request("digest", self.names[0]))
