"""Records of faults for tests: what a test does not name is filled in."""

from typing import Any

from checkers.record.faults import FaultRecord
from checkers.record.reading import decoded


def whole(raw: dict[str, Any]) -> dict[str, Any]:
    """A record of a fault with all that it cannot lack."""
    card = {"number": 1, "kind": "partition", "name": "one", "at_s": 0.0, "heal_s": 1.0} | raw.get("card", {})
    return {"achieved": "installed", "words": ""} | raw | {"card": card}


def fault_of(raw: dict[str, Any]) -> FaultRecord:
    """The record of one fault."""
    return decoded("fault", whole(raw), FaultRecord, whole=False)
