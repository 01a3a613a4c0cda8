"""The result for one file judged by hand: a line of text, or an object of JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from checkers.base.verdict import Verdict
from harness.plain_words import shorten

LINE_MAX = 2000
"""Maximum number of characters of a line; values of a history may be long or contain line breaks."""


@dataclass(frozen=True, slots=True)
class JudgedFile:
    """One judged file.

    error: reason why the file could not be read, which makes the verdict unknown
    model: the chosen model
    """

    file: str
    verdict: Verdict
    error: str = ""
    model: str = ""

    def to_json(self) -> dict[str, Any]:
        entry = {"file": self.file, **self.verdict.to_json()}
        entry |= {"model": self.model} if self.model else {}
        return entry | ({"error": self.error} if self.error else {})

    def in_words(self) -> str:
        verdict = self.verdict
        why = f"error: {self.error}" if self.error else verdict.reason or str(verdict.details.get("decided", ""))
        if verdict.witnesses:
            from harness.story.kinds import name_in_words  # a valid file needs no table of kinds

            first = verdict.witnesses[0]
            why = (
                first.summary
                if first.summary.startswith(first.kind)
                else f"{name_in_words(first.kind)}: {first.summary}"
            )
        return shorten(f"{verdict.validity!s:<8} {self.file}" + (f"  {why}" if why else ""), LINE_MAX)
