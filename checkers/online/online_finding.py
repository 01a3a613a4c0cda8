"""A finding of an online check: a violation, and the checker that will find it again in the sealed run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from checkers.base.verdict import Witness


@dataclass(frozen=True, slots=True)
class OnlineFinding:
    """checker: name of the checker whose rule was violated, as in results.json.
    in_logs: the evidence lies in the logs of the nodes, so a copy of them now keeps more of it than one later."""

    checker: str
    witness: Witness
    in_logs: bool = False

    def to_json(self) -> dict[str, Any]:
        """Its entry in outcome.json; the evidence itself comes from the sealed run."""
        facts = {name: self.witness.facts[name] for name in ("key", "nodes", "epoch", "offset") if self.about(name)}
        return {"checker": self.checker, "kind": self.witness.kind, "summary": self.witness.summary} | facts

    def about(self, name: str) -> bool:
        return self.witness.facts.get(name) is not None
