"""`fork-lists`: each writer appends to its own list, and readers read the lists of all writers in one transaction.

If each of two readers misses a write that the other reader saw, the two readers saw two histories: a long fork.  All
writers commit at the same time, and a reader reads all lists, so any two commits that two readers see in different
orders are noticed.
"""

from workloads.generators import Call
from workloads.transactions import ListAppend, transaction

ROUND_S = 0.5
"""Seconds after which all threads continue with fresh lists, so that lists stay short."""


class ForkLists(ListAppend):
    name = "fork-lists"
    summary = "single appends by many writers, and reads of all their lists, where snapshot isolation is promised"
    checkers = ("list-append-snapshot",)

    def generator(self, placement):
        writes = not placement.reads_only and placement.thread % 4 != 0
        return Call(append_own if writes else read_all)

    def final(self):
        return [transaction([["r", "0/0", None]])]


def append_own(turn):
    return transaction([["append", f"{int(turn.time_s / ROUND_S)}/{turn.placement.thread}", turn.fresh()]])


def read_all(turn):
    keys = [f"{int(turn.time_s / ROUND_S)}/{thread}" for thread in range(turn.threads)]
    return transaction([["r", key, None] for key in turn.rng.sample(keys, len(keys))])
