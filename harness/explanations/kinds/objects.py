"""Wrong answers of small objects: registers, counters, locks, queues, sets, logs and banks."""

from __future__ import annotations

from collections.abc import Mapping

from harness.explanations.kinds.kind import Stage, ViolationKind, kinds

_ANSWERS = {
    "value from nowhere": (
        "An answer can only contain what some client wrote. This answer contains a value that no successful write can "
        "have produced."
    ),
    "servers that differ": (
        "Once writes have ended and the system has recovered, every server must answer the same. Here two servers gave "
        "two answers for one key, and one of them is wrong."
    ),
    "a value that nobody wrote": (
        "An answer can only contain what some client wrote. No client invoked a write of this value."
    ),
    "order cycle": (
        "All answers must fit one order of the operations in which each takes effect between its call and its answer. "
        "Here every such order contradicts at least one answer."
    ),
    "no order": (
        "All answers must fit one order of the operations in which each takes effect between its call and its answer. "
        "A search tried every order of these operations, and none fits."
    ),
    "impossible sum": (
        "A counter must return the sum of the changes that were made before. No choice of the changes that were "
        "possible at that moment gives this sum."
    ),
    "held twice": (
        "A lock belongs to one client at a time. Here two clients held it at the same moment, so both could change "
        "what it protects."
    ),
    "too many held": (
        "A semaphore gives out a fixed number of permits, and no more are held at one time. Here clients held more of "
        "them at the same moment than there are."
    ),
    "two values at one offset": (
        "Each position of a log holds one value for ever. Here two clients saw two values at the same position."
    ),
    "duplicate": (
        "What was added once may come out once. Here the same element was delivered, handed out or stored twice."
    ),
    "acknowledged element lost": (
        "What was added and acknowledged must be found later. This element was acknowledged, and no later answer "
        "contains it."
    ),
    "token handed out twice": (
        "Every holder of a lock must get a fencing token of its own. Here two processes got the same token."
    ),
    "tokens out of order": (
        "Each fencing token must be greater than all tokens before it. Here a later holder got a smaller token."
    ),
    "stale token accepted": (
        "What a lock guards must refuse the token of an earlier holder. Here it took one after a newer token."
    ),
    "token never handed out": (
        "What a lock guards must accept only tokens that the lock has handed out. Here it accepted a token that the "
        "lock had given to no client."
    ),
    "wrong total": (
        "Transfers move money and never make or destroy any. Here the balances of one read add up to another total."
    ),
    "wrong balances": (
        "After the last transfer, a read must show all acknowledged ones. Here no choice of the transfers without an "
        "answer explains the balances: an acknowledged transfer is missing, or one took place twice."
    ),
    "negative balance": (
        "A transfer that would overdraw an account must be refused. Here an account held less than nothing."
    ),
    "other accounts": (
        "Every read must show every account of the bank. Here a read showed other accounts than all other reads."
    ),
    "long fork": (
        "All readers must see two independent writes in one order. Here two reads saw them in opposite orders."
    ),
    "writes in a circle": (
        "All readers must see independent writes in one order. Here several reads each showed one write without the "
        "next, and so they put the writes in a circle."
    ),
    "half of a write": (
        "A reader must see all that one transaction wrote, or nothing of it. Here a read showed one key and lacked "
        "another one."
    ),
    "out of order": (
        "A queue must return its oldest element, a stack its newest one, and a priority queue its smallest one. Here "
        "another one came out first."
    ),
    "not empty": (
        "A queue or a stack may answer that it is empty only while it is. Here it held at least one element all the "
        "time."
    ),
}

_ANSWERS_OF_TWO = {
    "stale read": (
        "A read must return the latest value whose write was acknowledged before the read began. This read returned an "
        "older value that had already been replaced."
    ),
    "lost write": (
        "A write that was acknowledged must be visible until another write replaces it. No client ever saw this one, "
        "and the older value came back."
    ),
    "read against acknowledgement": (
        "A read must return the latest value whose write was acknowledged before the read began. Here one node "
        "acknowledged a write and another node then answered with an older value: one of the two answers was wrong."
    ),
}

OBJECTS: Mapping[str, ViolationKind] = {
    **kinds(Stage.ANSWER, _ANSWERS),
    **kinds(Stage.ANSWER, _ANSWERS_OF_TWO, of_two=True),
}
