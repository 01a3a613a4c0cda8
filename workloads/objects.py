"""Workloads of single objects: registers, sets, logs, queues, counters, texts, ids and locks.

*Registers.*  `register` detects stale reads and lost writes.  Every written value is unique, for three reasons: a stale
answer can be distinguished from a repeated one; an unchanged write (which Kafka answers without a record) never occurs;
and linearizability is decided in linear time.

*Objects that grow or count.*  Each element or value is added once, so that the loss of an acknowledged one is detected:
no write overwrites it, and the last read or drain must return it.

*Locks.*  Threads acquire a lock, hold it for a while and release it.  Without tokens no two threads may hold the lock
at once.  A lock with a lease cannot promise this: a holder that is paused for longer than the lease still believes that
it holds the lock.  With fencing tokens the lock need not promise this: a later holder has a greater token, and the
protected object refuses a smaller token (Kleppmann 2016).  Then tokens must grow from each holder to the next.
Alternatively, the answer to an acquire states how long the lease is valid: then no other thread may acquire the lock
before that time is over, and afterwards any thread may (`leased-lock`).

The time for which a lock is held is drawn from an exponential distribution, limited to HELD_TIMES its mean.  The means
can be set: `--set held_s=2`.  A thread whose acquire got no answer does not know whether it holds the lock, so the
thread does not release the lock: its next request is an acquire by a new process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from random import Random
from typing import ClassVar

from checkers.base.history import Type
from system_under_test.client import Outcome, Placement, Request
from workloads.generators import Call, Generator, Mix, Pick, Stagger, Step, Turn, Wait, reserve, zipf
from workloads.workload import Calls, MixedWorkload, Workload, fresh, nothing

# ---- registers -------------------------------------------------------------------------------------------------------

VALUES = 4
"""Number of values of `cas-register`."""
KEYS_A_REGISTER = 10
REPEATED_SHARE = 0.3
"""Fraction of writes among the requests of a thread of `repeated-register` that reads and writes."""
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
    """Registers with compare-and-set.  A compare-and-set that did not match is recorded in the history as `fail` with
    the error `mismatch`.  Values repeat, so that about one compare-and-set in `VALUES` matches.
    """

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
    """Registers whose few values are written repeatedly.

    A system may treat a write of the register's current value in a special way: Kafka's controller answers such a SET
    without a record.  A deposed leader that answers at once acknowledges a write that no majority has seen.  Unique
    values never trigger this bug.

    Such a wrong acknowledgement is rare and short-lived, so the threads are arranged to provoke it:

    * Each client node writes a single value of its own.  A partition that separates client nodes separates values, too.
      So the register of a leader that is cut off with one client node has the value that this node continues to write.
      A write of another value would be appended to the log of this leader, and every later write would wait behind it.
    * The first client node only writes, and most writes are its own.  So the register mostly has its value when a
      partition begins.
    * The other client nodes read, and seldom write; of their threads, only those that follow the leader write.  So few
      open writes of their values can explain a wrong read.
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
    """Registers on which all servers must agree in the end; every client uses only one server.

    Systems that replicate without a leader, or that let every server answer, promise this: once writes have ended and
    the system has recovered, every server returns the same answer.  Earlier answers are not judged.
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

    Every answer contains the position of the state that it describes, so the checker replays the order of positions
    instead of searching for an order.
    """

    name = "shown-order"
    summary = "registers, each answer with the position that the system shows for it"
    checkers = ("shown-order",)
    functions: ClassVar[Mapping[str, str]] = {"read": "read_shown", "write": "write_shown"}
    real_test = "Reads and writes of every key are answered with positions, by several servers."
    mix = ((0.45, "write", fresh), (0.55, "read", nothing))


class Digests(ShownOrder):
    """Registers whose client also returns digests of replicas: digests at equal positions must be equal."""

    name = "digests"
    summary = "registers with shown positions, and digests of every replica at equal positions"
    functions: ClassVar[Mapping[str, str]] = {**ShownOrder.functions, "digest": "digest"}
    reads = frozenset({"read", "digest"})
    real_test = "Digests of one position are answered by several servers."

    def generator(self, placement: Placement) -> Generator:
        digest = Call(lambda turn: Request("digest", self.names[0]))
        return Mix(((1.0 - DIGEST_SHARE, super().generator(placement)), (DIGEST_SHARE, digest)))


# ---- objects that grow or count --------------------------------------------------------------------------------------

READ_EVERY_S = 4.0
"""Mean seconds between two reads of a thread that only reads the large set."""
AMOUNT_MAX = 3
"""Maximum amount of one addition to a counter."""


class GrowSet(MixedWorkload):
    name = "set"
    summary = "elements are added to sets, and whole sets are read"
    checkers = ("set",)
    functions: ClassVar[Mapping[str, str]] = {"add": "add", "read": "members"}
    reads = frozenset({"read"})
    writes = frozenset({"add"})
    real_test = "Elements are acknowledged during faults, and every set is read after the last of them."
    mix = ((0.8, "add", fresh), (0.2, "read", nothing))


class LargeSet(GrowSet):
    """One set, which is read seldom during the run, and completely at its end, so that even an element lost late is
    found.
    """

    name = "large-set"
    summary = "elements are added to one set, which is read seldom and whole at the end"
    invoked_share = 0.5

    @staticmethod
    def objects(key_count: int) -> int:
        return 1

    def generator(self, placement: Placement) -> Generator:
        return reserve(
            placement, readers=Stagger(READ_EVERY_S, self.call("read", nothing)), others=self.call("add", fresh)
        )


class AppendLog(MixedWorkload):
    """Logs.  Two reads that return values in different orders are a violation.  A client that learns the offset of an
    appended value returns the offset, so that two values at one offset are found, too.
    """

    name = "append-log"
    summary = "values are appended to logs, and whole logs are read"
    checkers = ("append-log",)
    functions: ClassVar[Mapping[str, str]] = {"append": "append", "read": "entries"}
    reads = frozenset({"read"})
    writes = frozenset({"append"})
    real_test = "Values are acknowledged during faults, and every log is read after the last of them."
    mix = ((0.8, "append", fresh), (0.2, "read", nothing))

    def pick(self) -> Pick:
        return zipf(self.names)


class Queue(MixedWorkload):
    """Queues.  A dequeue that got no answer may have removed any value, so it explains one value that is missing from
    the last drain.  Threads therefore enqueue more often than they dequeue, so that faults leave few dequeues open, and
    these explain few missing values.
    """

    name = "queue"
    summary = "values are enqueued and dequeued, first in first out; at the end queues are drained"
    checkers = ("queue",)
    functions: ClassVar[Mapping[str, str]] = {"enqueue": "enqueue", "dequeue": "dequeue", "drain": "drain"}
    reads = frozenset({"dequeue", "drain"})
    writes = frozenset({"enqueue"})
    final_repeats = False
    real_test = "Values are acknowledged during faults, and every queue is drained after the last of them."
    mix = ((0.7, "enqueue", fresh), (0.3, "dequeue", nothing))
    final_function = "drain"


class AtLeastOnceQueue(Queue):
    """Queues whose broker may deliver a value again, and in any order.

    `dequeue` receives a value and confirms it.  `drain` continues until all unconfirmed values of dead consumers were
    delivered again.
    """

    name = "at-least-once-queue"
    summary = "messages are sent and consumed, perhaps more than once; at the end queues are drained"
    checkers = ("at-least-once-queue",)
    real_test = "Messages are acknowledged during faults, and every queue is drained after the last of them."


class Counter(MixedWorkload):
    name = "counter"
    summary = "amounts are added to counters, and sums are read"
    checkers = ("counter",)
    functions: ClassVar[Mapping[str, str]] = {"add": "increment", "read": "total"}
    reads = frozenset({"read"})
    writes = frozenset({"add"})
    real_test = "Amounts are acknowledged during faults, and every sum is read after the last of them."
    unique_values = False
    mix = ((0.5, "add", lambda turn: (turn.rng.randint(1, AMOUNT_MAX),)), (0.5, "read", nothing))


def _text(turn: Turn) -> tuple[None, None, str]:
    return None, None, json.dumps(f"{turn.fresh()} ")


class KeyValue(MixedWorkload):
    name = "kv"
    summary = "strings are put, appended to and read under keys"
    checkers = ("kv",)
    functions: ClassVar[Mapping[str, str]] = {"get": "get", "put": "put", "append": "append_text"}
    reads = frozenset({"get"})
    writes = frozenset({"put", "append"})
    real_test = "Appends of several threads to one key overlap, and reads show in which order they happened."
    mix = ((0.2, "put", _text), (0.4, "append", _text), (0.4, "get", nothing))


class UniqueIds(MixedWorkload):
    name = "unique-ids"
    summary = "ids are generated, and none may be given twice"
    checkers = ("unique-ids",)
    functions: ClassVar[Mapping[str, str]] = {"generate": "generate"}
    reads = frozenset({"generate"})
    writes = frozenset({"generate"})
    final_repeats = False
    real_test = "Several threads generate ids at once, during faults too."
    mix = ((1.0, "generate", nothing),)

    @staticmethod
    def objects(key_count: int) -> int:
        return 1

    def generator(self, placement: Placement) -> Generator:
        return Call(lambda turn: Request("generate", self.names[0]))


# ---- locks -----------------------------------------------------------------------------------------------------------

HELD_S = 0.1
"""Mean seconds for which a thread holds a lock (`held_s`)."""
HELD_LONG_S = 6.0
"""Mean seconds of a long hold, which exceeds a lease that is not renewed; LONG_SHARE of all holds are long
(`held_long_s`, `long_share`).
"""
LONG_SHARE = 0.1
HELD_TIMES = 3
"""Maximum ratio of a hold to its mean."""
WRITES = 2
"""Number of writes of each holder of a fenced lock to the protected register."""
RELEASES_MAX = 20
"""Maximum number of attempts to release a lock if each attempt certainly failed; after that the thread treats the lock
as lost.
"""


@dataclass(frozen=True, slots=True)
class HoldTimes:
    """Distribution of the seconds for which locks are held: the mean of short holds, the mean of long holds, and the
    share of long holds.
    """

    mean_s: float = HELD_S
    long_s: float = HELD_LONG_S
    long_share: float = LONG_SHARE

    def draw(self, rng: Random) -> float:
        mean_s = self.long_s if rng.random() < self.long_share else self.mean_s
        return min(rng.expovariate(1 / mean_s), HELD_TIMES * mean_s) if mean_s else 0.0


@dataclass(frozen=True, slots=True)
class Holding(Generator):
    """One thread.

    key: key of the lock that it holds; "" while it holds none
    token: fencing token of that lock
    waited: True if the thread has waited since it acquired that lock
    writes: number of writes that the thread has yet to make while it holds that lock
    fenced: True for locks with fencing tokens
    """

    names: tuple[str, ...]
    held: HoldTimes
    fenced: bool = False
    key: str = ""
    token: int | None = None
    writes: int = 0
    waited: bool = False
    releases: int = 0

    def next(self, turn: Turn) -> tuple[Step, Generator]:
        if not self.key:
            return Request("acquire", turn.rng.choice(self.names)), self
        if not self.waited:
            return Wait(self.held.draw(turn.rng)), replace(self, waited=True)
        if self.writes:
            return Request("write", self.key, self.token), replace(self, writes=self.writes - 1, waited=False)
        return Request("release", self.key), self

    def heard(self, request: Request, outcome: Outcome) -> Generator:
        if request.f == "acquire" and outcome.type is Type.OK:
            writes = WRITES if self.fenced else 0
            return Holding(self.names, self.held, self.fenced, request.key or "", outcome.value, writes)
        if request.f == "acquire":
            return self
        if request.f == "write":
            return self if outcome.type is Type.OK else Holding(self.names, self.held, self.fenced)
        if outcome.type is Type.FAIL and self.releases < RELEASES_MAX:
            return replace(self, releases=self.releases + 1)
        return Holding(self.names, self.held, self.fenced)


class Lock(Workload):
    name = "lock"
    summary = "locks are acquired, held and released"
    checkers = ("mutex",)
    functions: ClassVar[Mapping[str, str]] = {"acquire": "acquire", "release": "release"}
    reads = frozenset()
    writes = frozenset({"acquire", "release"})
    real_test = "Threads compete for a lock while its holder is cut off or paused."
    invoked_share = 0.1
    ok_share = 0.5
    unique_values = False

    parameters: ClassVar[Mapping[str, float]] = {
        "held_s": HELD_S,
        "held_long_s": HELD_LONG_S,
        "long_share": LONG_SHARE,
    }

    def held(self) -> HoldTimes:
        return HoldTimes(self.settings["held_s"], self.settings["held_long_s"], self.settings["long_share"])

    def generator(self, placement: Placement) -> Generator:
        return Holding(self.names, self.held())

    def final(self) -> Sequence[Request]:
        return []


class FencedLock(Lock):
    name = "fenced-lock"
    summary = "locks with fencing tokens guard a register that refuses a smaller token"
    checkers = ("fenced-lock",)
    functions: ClassVar[Mapping[str, str]] = {"acquire": "acquire_token", "write": "fenced_write", "release": "release"}
    writes = frozenset({"acquire", "write", "release"})
    real_test = "A holder that was cut off or paused writes after another holder has written."

    def generator(self, placement: Placement) -> Generator:
        return Holding(self.names, self.held(), fenced=True)


class LeasedLock(Lock):
    name = "leased-lock"
    summary = "locks with a lease, of which the server says how long it is valid"
    checkers = ("leased-lock",)
    functions: ClassVar[Mapping[str, str]] = {"acquire": "acquire_lease", "release": "release"}
    real_test = "Threads compete for a lock while its holder is cut off or paused, and while its lease ends."
