"""Anomalies of a log of messages, as its producers and consumers see them."""

from __future__ import annotations

from collections.abc import Mapping

from harness.explanations.kinds.kind import Stage, ViolationKind

MESSAGES: Mapping[str, ViolationKind] = {
    "unsent-read": ViolationKind(
        Stage.ANSWER,
        "A consumer can only receive what some producer sent. Here it received something else.",
        "message from nowhere",
    ),
    "lost-write": ViolationKind(
        Stage.ANSWER,
        "A message whose sending was acknowledged must reach every consumer that reads past it. Here consumers read "
        "later messages and never this one.",
        "lost message",
    ),
    "inconsistent-offsets": ViolationKind(
        Stage.ANSWER,
        "Each position of a log holds one message for ever. Here two different messages were seen at one position.",
        "two messages at one offset",
    ),
    "precommitted-read": ViolationKind(
        Stage.ANSWER,
        "A transaction's messages become visible only when it has committed. Here they were read before.",
        "read before commit",
    ),
    "int-poll-skip": ViolationKind(
        Stage.ANSWER,
        "One poll must return consecutive messages. Here a message in the middle was left out.",
        "message skipped in one transaction",
    ),
    "int-nonmonotonic-poll": ViolationKind(
        Stage.ANSWER,
        "One poll must return messages in the order of the log. Here their order went back.",
        "messages out of order in one transaction",
    ),
    "poll-skip": ViolationKind(
        Stage.ANSWER,
        "A consumer must go on where it stopped. Here its next poll left messages out.",
        "messages skipped",
    ),
    "nonmonotonic-poll": ViolationKind(
        Stage.ANSWER,
        "A consumer must go on where it stopped. Here its next poll went back to older messages.",
        "messages out of order",
    ),
    "nonmonotonic-send": ViolationKind(
        Stage.ANSWER,
        "What a producer sends later must stand later in the log. Here its messages stand in the wrong order.",
        "messages stored out of order",
    ),
    "unseen": ViolationKind(
        Stage.ANSWER,
        "At the end every acknowledged message should have been received. No consumer ever received this one.",
        "message never delivered",
    ),
    "int-nonmonotonic-send": ViolationKind(
        Stage.ANSWER,
        "The messages of one transaction must stand in the log in the order of sending. Here they stand in another "
        "order.",
        "messages stored out of order in one transaction",
    ),
    "int-send-skip": ViolationKind(
        Stage.ANSWER,
        "The messages of one transaction were expected to stand side by side. Here others stand between them.",
        "messages of one transaction apart",
    ),
}
