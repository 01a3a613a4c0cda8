"""Checks that each fault of faults.json was dealt: it must agree with test.json, the spec's nemesis and the nodes.

The harness writes each card to test.json before it plays the card.  So each fault must be one of these cards.  Its kind
must be one that the spec's nemesis names, and it may concern only nodes of the run.  It may excuse only what its kind
excuses (`announcements.py`).  A card that was never played leaves no fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from checkers.base.demands import Demands
from checkers.base.json_file import mapping, sequence
from checkers.run_quality.announcements import foreign

BY_FILE = "schedule"
"""`Demands.nemesis` of a run whose schedule came from a file: its cards may be of any kind."""

_CARD = ("kind", "name", "at_s", "heal_s")

Record = Mapping[str, Any]


def not_as_dealt(records: Sequence[Record], test: Mapping[str, Any], demands: Demands) -> list[str]:
    """One sentence for each error in the card or the nodes of a fault; empty if there is none.

    test: content of test.json.  Raises KeyError or TypeError if a record is malformed.
    """
    if not demands.faults or not records:
        return []
    if not isinstance(test.get("schedule"), list):
        return ["test.json does not hold the schedule of faults"]
    dealt = {card.get("number"): card for card in map(mapping, test["schedule"])}
    kinds = {name.strip() for name in demands.nemesis.split(",")}
    known = {*demands.servers, *demands.client_nodes}
    clauses = []
    for record in records:
        card, number = record["card"], record["card"]["number"]
        named = f"fault {number} of faults.json"
        if number not in dealt or any(card.get(name) != dealt[number].get(name) for name in _CARD):
            clauses.append(f"{named} is not a card of the schedule in test.json")
        if demands.nemesis and demands.nemesis != BY_FILE and card["kind"] not in kinds:
            clauses.append(f"{named} is of kind {card['kind']}, and the nemesis was {demands.nemesis}")
        if strange := sorted(set(_nodes_of(record)) - known):
            clauses.append(f"{named} concerns {', '.join(strange)}, and the run has no such node")
        if announced := foreign(str(card["kind"]), mapping(record.get("settings"))):
            clauses.append(f"{named} announces {', '.join(announced)}, and no fault of kind {card['kind']} does that")
    return clauses


def _nodes_of(record: Record) -> Iterator[str]:
    """Every node that the fault or its measurements name."""
    yield from map(str, sequence(record.get("nodes")))
    for pair in sequence(record.get("cut")):
        yield from map(str, pair)
    for measurement in sequence(record.get("measured")):
        for link in mapping(mapping(measurement).get("links")):
            yield from link.split(">")
        yield from mapping(mapping(measurement).get("states"))
