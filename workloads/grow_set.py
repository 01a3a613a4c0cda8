"""`set` and `large-set`: elements are added, each once, and whole sets are read.

A set shows a lost acknowledged write where a register hides it: nothing overwrites an element, so the last read must
show every element that was acknowledged.  `large-set` has one set.  It is read seldom while the run goes on, and whole
at its end, so an element lost late is found too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from system_under_test.client import Placement, Request
from workloads.generators import Call, Generator, Mix, Stagger, reads_of, reserve, uniform
from workloads.workload import Workload

ADD_SHARE = 0.8
READ_EVERY_S = 4.0
"""Mean pause between two reads of one thread that only reads the large set."""


class GrowSet(Workload):
    name = "set"
    summary = "elements are added to sets, and whole sets are read"
    checkers: ClassVar[tuple[str, ...]] = ("set",)
    functions: ClassVar[Mapping[str, str]] = {"add": "add", "read": "members"}
    reads: ClassVar[frozenset[str]] = frozenset({"read"})
    writes: ClassVar[frozenset[str]] = frozenset({"add"})
    real_test = "Elements are acknowledged during faults, and every set is read after the last of them."

    def generator(self, placement: Placement) -> Generator:
        key = uniform(self.names)
        add = Call(lambda turn: Request("add", key(turn), turn.fresh()))
        read = Call(lambda turn: Request("read", key(turn)))
        return reserve(placement, readers=read, others=Mix(((ADD_SHARE, add), (1 - ADD_SHARE, read))))

    def final(self) -> Sequence[Request]:
        return reads_of("read", self.names)


class LargeSet(GrowSet):
    name = "large-set"
    summary = "elements are added to one set, which is read seldom and whole at the end"
    invoked_share = 0.5

    @staticmethod
    def objects(key_count: int) -> int:
        return 1

    def generator(self, placement: Placement) -> Generator:
        name = self.names[0]
        add = Call(lambda turn: Request("add", name, turn.fresh()))
        read = Stagger(READ_EVERY_S, Call(lambda turn: Request("read", name)))
        return reserve(placement, readers=read, others=add)
