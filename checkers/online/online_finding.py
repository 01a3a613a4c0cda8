"""A finding of an online check: a violation, and the checker that will find it again in the sealed run."""

from __future__ import annotations

from dataclasses import dataclass

from checkers.base.verdict import Witness
from checkers.record.outcome import OnlineViolation


@dataclass(frozen=True, slots=True)
class OnlineFinding:
    """checker: name of the checker whose rule was violated, as in results.json.
    in_logs: the evidence lies in the logs of the nodes, so a copy of them now keeps more of it than one later."""

    checker: str
    witness: Witness
    in_logs: bool = False

    def found_at(self, time_ns: int) -> OnlineViolation:
        """Return what the journal keeps of it; the evidence itself comes from the sealed run."""
        facts, nodes = self.witness.facts, self.witness.facts.get("nodes")
        return OnlineViolation(
            self.checker,
            self.witness.kind,
            self.witness.summary,
            time_ns,
            key=facts.get("key"),
            nodes=None if nodes is None else tuple(nodes),
            epoch=facts.get("epoch"),
            offset=facts.get("offset"),
        )
