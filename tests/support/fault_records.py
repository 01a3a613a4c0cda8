"""Records of faults for tests: what a test does not name is filled in."""

from typing import Any

from checkers.record.faults import FaultRecord
from checkers.record.reading import MEASURED_SINCE, WHOLE_SINCE, faults_of


def whole(raw: dict[str, Any]) -> dict[str, Any]:
    """An entry of faults.json with all that a record cannot lack."""
    card = {"number": 1, "kind": "partition", "name": "one", "at_s": 0.0, "heal_s": 1.0} | raw.get("card", {})
    return {"achieved": "installed", "words": ""} | raw | {"card": card}


def fault_of(raw: dict[str, Any]) -> FaultRecord:
    """The record of one fault.  One without measurements is of the oldest format."""
    oldest = "measured" not in raw
    (record,) = faults_of([whole(raw)], MEASURED_SINCE - 1 if oldest else WHOLE_SINCE - 1)
    return record
