"""Workloads over registers.

`register` shows stale reads and lost writes.  Every written value is unique, for three reasons: a stale answer can be
distinguished from a repeated one; an unchanged write (which Kafka answers without a record) never occurs; and
linearizability is decided in linear time.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import ClassVar

from system_under_test.client import Placement, Request
from workloads.generators import Call, Generator, Mix, Turn, reserve
from workloads.workload import Calls, MixedWorkload, fresh, nothing

VALUES = 4
"""Values of `cas-register`."""
KEYS_A_REGISTER = 10
REPEATED_SHARE = 0.3
"""Share of writes among the requests of a thread of `repeated-register` that both reads and writes."""
DIGEST_SHARE = 0.1


class Register(MixedWorkload):
    name = "register"
    summary = "reads and writes of single registers; every value is written once"
    checkers = ("linearizability",)
    functions: ClassVar[Mapping[str, str]] = {"read": "read", "write": "write"}
    reads = frozenset({"read"})
    writes = frozenset({"write"})
    real_test = "Reads of every key overlap writes of that key, and some threads read from a leader they never leave."
    mix: ClassVar[Calls] = ((0.5, "write", fresh), (0.5, "read", nothing))


def _value(turn: Turn) -> int:
    return turn.rng.randrange(1, VALUES + 1)


class CasRegister(Register):
    """A compare-and-set that did not match is an answer: it stands in the history as `fail` with the error `mismatch`.
    Values repeat, so that about one compare-and-set in `VALUES` matches."""

    name = "cas-register"
    summary = "reads, writes and compare-and-set of single registers with few values"
    functions: ClassVar[Mapping[str, str]] = {"read": "read", "write": "write", "cas": "cas"}
    writes = frozenset({"write", "cas"})
    real_test = "Compare-and-set operations of several threads compete for the same value, and some of them match."
    unique_values = False
    mix = (
        (0.2, "write", lambda turn: (_value(turn),)),
        (0.5, "cas", lambda turn: (_value(turn), _value(turn))),
        (0.3, "read", nothing),
    )


class RepeatedRegister(Register):
    """Registers whose few values are written over and over.

    A system may treat a write of the value that it already holds in a special way: Kafka's controller answers such a
    SET without making a record.  A deposed leader that answers at once acknowledges a write that no majority has seen.
    Unique values never show this.

    Such a wrong acknowledgement is rare and short-lived, so the threads are arranged for it:

    * Each client node writes one value, its own.  A partition that separates client nodes separates values, too.  So a
      leader that is cut off with one client node holds the value that this node goes on writing.  One write that
      changes something would be appended there, and every later write would wait behind it.
    * The first client node only writes, and most writes are its own.  So its value is mostly held when a partition
      begins.
    * The other client nodes read, and seldom write; only threads that follow the leader write there.  So few writes of
      their value are open that could excuse what they read.
    * There is one register for `KEYS_A_REGISTER` keys: an acknowledged write and a read that contradicts it must meet
      on one register within the second in which two leaders answer.
    """

    name = "repeated-register"
    summary = "reads and writes of one register; each client node writes one value"
    real_test = "A write of the value that the register already holds reaches a leader that was deposed."
    unique_values = False

    @staticmethod
    def objects(key_count: int) -> int:
        return ceil(key_count / KEYS_A_REGISTER)

    def generator(self, placement: Placement) -> Generator:
        own = int(placement.client_node.lstrip("c"))
        read, write = self.call("read", nothing), self.call("write", lambda turn: (own,))
        if own == 1:
            return reserve(placement, readers=read, others=write)
        mixed = Mix(((1 - REPEATED_SHARE, read), (REPEATED_SHARE, write)))
        return reserve(placement, readers=read, others=mixed if placement.follows else read)


class Convergence(Register):
    """Every client keeps to one server, and in the end all servers must agree.

    The promise of systems that replicate without a leader, or that let every server answer: once writes have ended and
    the system has recovered, every server answers the same.  What clients saw before is not judged.
    """

    name = "convergence"
    summary = "registers are written at every server, and read at every server after recovery"
    checkers = ("convergence",)
    real_test = "Several servers acknowledge writes of one key while they cannot talk, and all are read after recovery."
    each_server = True
    final_until_same = True
    final_needs_recovery = True
    mix = ((0.7, "write", fresh), (0.3, "read", nothing))


class SetConvergence(Convergence):
    name = "set-convergence"
    summary = "elements are added at every server, and whole sets are read at every server after recovery"
    functions: ClassVar[Mapping[str, str]] = {"members": "members", "add": "add"}
    reads = frozenset({"members"})
    writes = frozenset({"add"})
    mix = ((0.7, "add", fresh), (0.3, "members", nothing))


class ShownOrder(Register):
    """Registers of a system whose answers carry a position, such as a revision, a zxid or an LSN.

    Every answer states the position of the state that it is about, so the checker replays the order instead of
    searching for one.
    """

    name = "shown-order"
    summary = "registers, each answer with the position that the system shows for it"
    checkers = ("shown-order",)
    functions: ClassVar[Mapping[str, str]] = {"read": "read_shown", "write": "write_shown"}
    real_test = "Reads and writes of every key are answered with positions, by several servers."
    mix = ((0.45, "write", fresh), (0.55, "read", nothing))


class Digests(ShownOrder):
    """A client that also has `digest` is asked for digests of replicas: equal positions must have equal ones."""

    name = "digests"
    summary = "registers with shown positions, and digests of every replica at equal positions"
    functions: ClassVar[Mapping[str, str]] = {**ShownOrder.functions, "digest": "digest"}
    reads = frozenset({"read", "digest"})
    real_test = "Digests of one position are answered by several servers."

    def generator(self, placement: Placement) -> Generator:
        digest = Call(lambda turn: Request("digest", self.names[0]))
        return Mix(((1.0 - DIGEST_SHARE, super().generator(placement)), (DIGEST_SHARE, digest)))
