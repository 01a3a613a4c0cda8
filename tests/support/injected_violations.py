"""A correct run that tests falsify, and helpers that read the verdicts about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toy_quorum import Evidence, Quorum, Row

from checkers.base.verdict import Validity, Verdict, Witness
from system_under_test.kraft.log.batch import extend


def correct_run() -> Evidence:
    """n1 leads and is cut off with a tail; n2 leads on; heal; n1 is restarted; writes before, during and after."""
    quorum = Quorum()
    quorum.elect("n1")
    for i in range(4):
        quorum.write(f"k{i % 2}")
    quorum.refuse("k0")
    quorum.cut({"n1"})
    for _ in range(3):
        quorum.write("k0")
    quorum.elect("n2", {"n2", "n3", "n4", "n5"})
    quorum.replicate()
    for i in range(4):
        quorum.write(f"k{i % 2}")
    quorum.heal()
    quorum.write("k1")
    quorum.crash("n1")
    quorum.replicate()
    quorum.write("k0")
    quorum.read_all()
    return quorum.evidence()


def invalid(evidence: Evidence, folder: Path) -> dict[str, Verdict]:
    verdicts = evidence.judge(folder)
    unknown = {n: v.reason for n, v in verdicts.items() if v.validity is Validity.UNKNOWN}
    assert not unknown
    return {name: verdict for name, verdict in verdicts.items() if verdict.validity is Validity.INVALID}


def only(found: dict[str, Verdict], name: str, kind: str) -> Witness:
    """The first witness of the one checker that found something."""
    assert list(found) == [name]
    witness = found[name].witnesses[0]
    assert witness.kind == kind
    assert witness.facts["why"] and witness.facts["expected"] and witness.facts["nodes"]
    return witness


def rows_of(rows: list[Row], **columns: Any) -> list[Row]:
    return [r for r in rows if all(r[name] == value for name, value in columns.items())]


def rehash(rows: list[Row], copy: int) -> None:
    """Prefix hashes as the independent reader would have computed them (one batch per record)."""
    value = 0
    for r in rows_of(rows, copy=copy):
        value = extend(value, r["offset"], r["epoch"], r["checksum"] >> 31)
        r["batch_hash"] = value


def final(evidence: Evidence) -> int:
    """The number of the last copy of the data directories."""
    return max(int(c["copy"]) for c in evidence.copies)


def last_own(evidence: Evidence, node: str, event: str) -> Row:
    return rows_of(evidence.traces[node], event=event)[-1]
