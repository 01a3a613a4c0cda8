"""Anomalies of transactions, by the names of the theory (Adya 1999; Cerone & Gotsman 2016)."""

from __future__ import annotations

from collections.abc import Mapping

from harness.explanations.kinds.kind import Stage, ViolationKind, named_kinds

_ANSWERS = {
    "unwritten-read": (
        "value from nowhere",
        "A transaction can only read what some transaction wrote. This one read a value that nothing wrote.",
    ),
    "duplicate-elements": (
        "append applied twice",
        "Each element was appended to the list once. A transaction read the same element twice in one list.",
    ),
    "cyclic-versions": (
        "no order of versions",
        "The values of a key must have one order in which they replaced each other. Here each value must be both "
        "before and after another.",
    ),
    "incompatible-order": (
        "diverged lists",
        "Every reader must see the elements of a list in the same order. Two transactions read them in different "
        "orders, so the list has split.",
    ),
    "reordered-appends": (
        "appends out of order",
        "The appends of one transaction must stand in the list in the order in which the transaction made them. Here "
        "their order is different.",
    ),
    "G1a": (
        "aborted read",
        "What a failed transaction wrote must never be visible. Here a transaction read it.",
    ),
    "dirty-update": (
        "dirty update",
        "No transaction may build upon what a failed transaction wrote. Here one did, and its result was committed.",
    ),
    "G1b": (
        "intermediate read",
        "Only the last value that a transaction writes to a key may become visible. Here a transaction read a value in "
        "between.",
    ),
    "future-read": (
        "read of its own future",
        "A transaction cannot see what it writes only later. This one did.",
    ),
    "no-order": (
        "no order fits",
        "The transactions must have an order that explains every answer. Each order of the versions was tried here, "
        "and each ends in a contradiction.",
    ),
    "internal": (
        "unrepeatable read inside one transaction",
        "Within one transaction a read must agree with what the transaction itself read and wrote before. Here the "
        "value changed under it.",
    ),
    "lost-update": (
        "lost update",
        "Two transactions read the same version of a key and then both wrote it. One of the two updates ignores the "
        "other and is lost.",
    ),
    "G0": (
        "dirty write",
        "The writes of two transactions must not overlap: one comes first on every key. Here each overwrote the other "
        "on some key.",
    ),
    "G0-process": (
        "writes out of session order",
        "Transactions of one client must take effect in the order in which the client ran them. Here a write that came "
        "later stands before an earlier one.",
    ),
    "G0-realtime": (
        "acknowledged append lost",
        "A write that was acknowledged before another began must come first. Here the order of the writes contradicts "
        "that, as if the acknowledged one had disappeared and come back later, or never.",
    ),
    "G1c": (
        "circular information flow",
        "Information may flow from one transaction to another, but not back. Here each of them saw what another wrote, "
        "in a circle.",
    ),
    "G1c-process": (
        "reads out of session order",
        "A client must not see the effects of something that it does only later. Here the order in which one client "
        "ran its transactions closes a circle of what each of them saw.",
    ),
    "G1c-realtime": (
        "read against real time",
        "A transaction must not see what began only after its answer. Here real time closes a circle of what the "
        "transactions saw.",
    ),
    "G-single": (
        "read skew",
        "A transaction must see all of another transaction's effects or none. This one saw some of them and missed "
        "others.",
    ),
    "G-single-process": (
        "stale read in one session",
        "A client must see the effects of its own earlier transactions. Here a later transaction of the same client "
        "missed one of them.",
    ),
    "G-single-realtime": (
        "stale read",
        "A transaction must see everything that was acknowledged before it began. This one missed such a write.",
    ),
    "G-nonadjacent": (
        "long fork",
        "All readers must see independent writes happen in one order. Here two readers saw two writes in opposite "
        "orders.",
    ),
    "G-nonadjacent-process": (
        "long fork in one session",
        "All readers must see independent writes happen in one order, which agrees with the order within each client. "
        "Here no such order exists.",
    ),
    "G-nonadjacent-realtime": (
        "long fork against real time",
        "All readers must see independent writes happen in one order, which agrees with real time. Here no such order "
        "exists.",
    ),
    "G2-item": (
        "write skew",
        "The result must be the same as if the transactions had run one after another. Here each read what another "
        "overwrote, so neither can come first.",
    ),
    "G2-item-process": (
        "write skew in one session",
        "The result must be the same as if the transactions had run one after another, each client's in its own order. "
        "Here no such order exists.",
    ),
    "G2-item-realtime": (
        "write skew against real time",
        "The result must be the same as if the transactions had run one after another in real time. Here no such order "
        "exists.",
    ),
}

TRANSACTIONS: Mapping[str, ViolationKind] = named_kinds(Stage.ANSWER, _ANSWERS)
