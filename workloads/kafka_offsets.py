"""`kafka-offsets`: consumer groups commit offsets, and a committed offset is a register.

Beside the test, an exporter of consumer lag asks the brokers for the offsets of thousands of groups: a coordinator that
is deposed meanwhile has more to do between two steps, and what happens between them shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from checkers.base.history import CREATE
from system_under_test.functions import Function
from workloads.register import Register


class KafkaOffsets(Register):
    name = "kafka-offsets"
    summary = "offsets that consumer groups commit, each a linearizable register; an exporter of lag asks meanwhile"
    own_functions: ClassVar[Mapping[str, Function]] = {
        "create_group": Function("make what a group commits offsets for", "key"),
        "commit_offset": Function("commit an offset of a group", "key value"),
        "committed_offset": Function("the offset that a group has committed", "key", "number or nil", observes=True),
        "watch_lag": Function("ask for the offsets of many groups", "nothing"),
    }
    functions: ClassVar[Mapping[str, str]] = {
        CREATE: "create_group",
        "read": "committed_offset",
        "write": "commit_offset",
    }
    background: ClassVar[Mapping[str, int]] = {"watch_lag": 6}
