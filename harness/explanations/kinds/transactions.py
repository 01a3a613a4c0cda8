"""Anomalies of transactions, by the names of the theory (Adya 1999; Cerone & Gotsman 2016)."""

from __future__ import annotations

from collections.abc import Mapping

from harness.explanations.kinds.kind import Stage, ViolationKind

TRANSACTIONS: Mapping[str, ViolationKind] = {
    "unwritten-read": ViolationKind(
        Stage.ANSWER,
        "A transaction can only read what some transaction wrote. This one read a value that nothing wrote.",
        "value from nowhere",
    ),
    "duplicate-elements": ViolationKind(
        Stage.ANSWER,
        "Each element was appended to the list once. A transaction read the same element twice in one list.",
        "append applied twice",
    ),
    "cyclic-versions": ViolationKind(
        Stage.ANSWER,
        "The values of a key must have one order in which they replaced each other. Here each value must be both "
        "before and after another.",
        "no order of versions",
    ),
    "incompatible-order": ViolationKind(
        Stage.ANSWER,
        "Every reader must see the elements of a list in the same order. Two transactions read them in different "
        "orders, so the list has split.",
        "diverged lists",
    ),
    "reordered-appends": ViolationKind(
        Stage.ANSWER,
        "The appends of one transaction must stand in the list in the order in which the transaction made them. Here "
        "their order is different.",
        "appends out of order",
    ),
    "G1a": ViolationKind(
        Stage.ANSWER,
        "What a failed transaction wrote must never be visible. Here a transaction read it.",
        "aborted read",
    ),
    "dirty-update": ViolationKind(
        Stage.ANSWER,
        "No transaction may build upon what a failed transaction wrote. Here one did, and its result was committed.",
        "dirty update",
    ),
    "G1b": ViolationKind(
        Stage.ANSWER,
        "Only the last value that a transaction writes to a key may become visible. Here a transaction read a value in "
        "between.",
        "intermediate read",
    ),
    "future-read": ViolationKind(
        Stage.ANSWER,
        "A transaction cannot see what it writes only later. This one did.",
        "read of its own future",
    ),
    "no-order": ViolationKind(
        Stage.ANSWER,
        "The transactions must have an order that explains every answer. Each order of the versions was tried here, "
        "and each ends in a contradiction.",
        "no order fits",
    ),
    "internal": ViolationKind(
        Stage.ANSWER,
        "Within one transaction a read must agree with what the transaction itself read and wrote before. Here the "
        "value changed under it.",
        "unrepeatable read inside one transaction",
    ),
    "lost-update": ViolationKind(
        Stage.ANSWER,
        "Two transactions read the same version of a key and then both wrote it. One of the two updates ignores the "
        "other and is lost.",
        "lost update",
    ),
    "G0": ViolationKind(
        Stage.ANSWER,
        "The writes of two transactions must not overlap: one comes first on every key. Here each overwrote the other "
        "on some key.",
        "dirty write",
    ),
    "G0-process": ViolationKind(
        Stage.ANSWER,
        "Transactions of one client must take effect in the order in which the client ran them. Here a write that came "
        "later stands before an earlier one.",
        "writes out of session order",
    ),
    "G0-realtime": ViolationKind(
        Stage.ANSWER,
        "A write that was acknowledged before another began must come first. Here the order of the writes contradicts "
        "that, as if the acknowledged one had disappeared and come back later, or never.",
        "acknowledged append lost",
    ),
    "G1c": ViolationKind(
        Stage.ANSWER,
        "Information may flow from one transaction to another, but not back. Here each of them saw what another wrote, "
        "in a circle.",
        "circular information flow",
    ),
    "G1c-process": ViolationKind(
        Stage.ANSWER,
        "A client must not see the effects of something that it does only later. Here the order in which one client "
        "ran its transactions closes a circle of what each of them saw.",
        "reads out of session order",
    ),
    "G1c-realtime": ViolationKind(
        Stage.ANSWER,
        "A transaction must not see what began only after its answer. Here real time closes a circle of what the "
        "transactions saw.",
        "read against real time",
    ),
    "G-single": ViolationKind(
        Stage.ANSWER,
        "A transaction must see all of another transaction's effects or none. This one saw some of them and missed "
        "others.",
        "read skew",
    ),
    "G-single-process": ViolationKind(
        Stage.ANSWER,
        "A client must see the effects of its own earlier transactions. Here a later transaction of the same client "
        "missed one of them.",
        "stale read in one session",
    ),
    "G-single-realtime": ViolationKind(
        Stage.ANSWER,
        "A transaction must see everything that was acknowledged before it began. This one missed such a write.",
        "stale read",
    ),
    "G-nonadjacent": ViolationKind(
        Stage.ANSWER,
        "All readers must see independent writes happen in one order. Here two readers saw two writes in opposite "
        "orders.",
        "long fork",
    ),
    "G-nonadjacent-process": ViolationKind(
        Stage.ANSWER,
        "All readers must see independent writes happen in one order, which agrees with the order within each client. "
        "Here no such order exists.",
        "long fork in one session",
    ),
    "G-nonadjacent-realtime": ViolationKind(
        Stage.ANSWER,
        "All readers must see independent writes happen in one order, which agrees with real time. Here no such order "
        "exists.",
        "long fork against real time",
    ),
    "G2-item": ViolationKind(
        Stage.ANSWER,
        "The result must be the same as if the transactions had run one after another. Here each read what another "
        "overwrote, so neither can come first.",
        "write skew",
    ),
    "G2-item-process": ViolationKind(
        Stage.ANSWER,
        "The result must be the same as if the transactions had run one after another, each client's in its own order. "
        "Here no such order exists.",
        "write skew in one session",
    ),
    "G2-item-realtime": ViolationKind(
        Stage.ANSWER,
        "The result must be the same as if the transactions had run one after another in real time. Here no such order "
        "exists.",
        "write skew against real time",
    ),
}
