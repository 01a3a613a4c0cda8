"""`list-append-snapshot`: the transactions of `list-append` on a database that promises snapshot isolation only."""

from workloads.transactions import ListAppend


class ListAppendSnapshot(ListAppend):
    name = "list-append-snapshot"
    summary = "transactions that append to lists and read them, where only snapshot isolation is promised"
    checkers = ("list-append-snapshot",)
