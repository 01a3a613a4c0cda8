"""A recorded fault, carried out against the roles of now in place of the names of then.

A schedule that was saved from a run says "the leader, with c1, cut from the others", and that the leader was n2.  When
it is played again, another node leads.  So the two nodes change places everywhere in the fault: what hit the leader
hits the leader, and what hit a follower hits a follower.  All other nodes keep their names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from checkers.record.faults import Fault


def needs_leader(fault: Fault) -> bool:
    """Whether the fault treats the leader of then in another way than a follower, so that one must lead now."""
    if fault.leader is None:
        return False
    return fault.leader in fault.nodes or any(fault.leader in link for link in fault.cut)


def by_role(fault: Fault, leader: str | None, servers: Collection[str]) -> Fault:
    """The fault with the leader of now in the role of the leader of then.

    leader: who leads now, None if none does; then the names of then stay.  servers: may be fewer than then."""
    then = fault.leader
    if leader is None or then is None or leader == then:
        return replace(fault, leader=leader or then)
    named = {*fault.nodes, *(end for link in fault.cut for end in link)}
    free = [server for server in servers if server not in named and server != leader]
    other = then if then in servers else next(iter(free), then)
    names = {then: leader, leader: other}
    return Fault(
        fault.kind,
        _renamed(fault.words, names),
        tuple(names.get(node, node) for node in fault.nodes),
        frozenset((names.get(a, a), names.get(b, b)) for a, b in fault.cut),
        _renamed(fault.settings, names),
        leader,
    )


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """The value with these nodes renamed in every text of it, at once."""
    if isinstance(value, str):
        return re.sub(r"\b\w+\b", lambda word: names.get(word.group(), word.group()), value)
    if isinstance(value, Mapping):
        return {_renamed(key, names): _renamed(each, names) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_renamed(each, names) for each in value)
    return value
