"""Anomalies of a log of messages, as its producers and consumers see them."""

from __future__ import annotations

from collections.abc import Mapping

from harness.explanations.kinds.kind import Stage, ViolationKind, named_kinds

_ANSWERS = {
    "unsent-read": (
        "message from nowhere",
        "A consumer can only receive what some producer sent. Here it received something else.",
    ),
    "lost-write": (
        "lost message",
        "A message whose sending was acknowledged must reach every consumer that reads past it. Here consumers read "
        "later messages and never this one.",
    ),
    "inconsistent-offsets": (
        "two messages at one offset",
        "Each position of a log holds one message for ever. Here two different messages were seen at one position.",
    ),
    "precommitted-read": (
        "read before commit",
        "A transaction's messages become visible only when it has committed. Here they were read before.",
    ),
    "int-poll-skip": (
        "message skipped in one transaction",
        "One poll must return consecutive messages. Here a message in the middle was left out.",
    ),
    "int-nonmonotonic-poll": (
        "messages out of order in one transaction",
        "One poll must return messages in the order of the log. Here their order went back.",
    ),
    "poll-skip": (
        "messages skipped",
        "A consumer must go on where it stopped. Here its next poll left messages out.",
    ),
    "nonmonotonic-poll": (
        "messages out of order",
        "A consumer must go on where it stopped. Here its next poll went back to older messages.",
    ),
    "nonmonotonic-send": (
        "messages stored out of order",
        "What a producer sends later must stand later in the log. Here its messages stand in the wrong order.",
    ),
    "unseen": (
        "message never delivered",
        "At the end every acknowledged message should have been received. No consumer ever received this one.",
    ),
    "int-nonmonotonic-send": (
        "messages stored out of order in one transaction",
        "The messages of one transaction must stand in the log in the order of sending. Here they stand in another "
        "order.",
    ),
    "int-send-skip": (
        "messages of one transaction apart",
        "The messages of one transaction were expected to stand side by side. Here others stand between them.",
    ),
}

MESSAGES: Mapping[str, ViolationKind] = named_kinds(Stage.ANSWER, _ANSWERS)
