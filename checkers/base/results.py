"""The verdicts of the last judging, `results.json`, as typed values: one reader and one writer.

Reading is strict, like that of other small files (`record/run_record.py`): an error in the file raises one BrokenFile,
which names the file and the field.  Older versions of the project wrote fewer fields; a missing field gets the default
of its type.  Fields that every version wrote are required: the verdict of the run, and the verdict of each checker.

An empty field is left out of the file (results/README.md lists all fields).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from checkers.base.verdict import EXIT_CODES, VIOLATIONS_BY_KIND, Validity, Verdict, Witness
from checkers.record.files import as_json, write_text_whole
from checkers.record.run_record import decoded, read_json

RESULTS = "results.json"
ATTRIBUTION = "attribution.json"
"""File that gives, for each fault, the number of runs without this fault in which a violation was still seen
(`harness.campaign.shrink`).
"""
VACUITY, AVAILABILITY, STATISTICS = "vacuity", "availability", "statistics"
"""Names of the checkers whose details have types of their own."""

_T = TypeVar("_T")


class RunVerdict(StrEnum):
    """The verdict of a run.

    HARNESS_FAILED: the run began but could not be judged
    NOT_JUDGED: the run has no results
    """

    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"
    HARNESS_FAILED = "harness failed"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True, slots=True)
class Criterion:
    """One measured quantity of a run and its minimum.

    least: the minimum of `value`
    words: meaning of the value
    demanded: True if a shortfall makes the verdict unknown
    advice: remedy for a shortfall
    """

    name: str
    value: float
    least: float
    words: str = ""
    demanded: bool = True
    advice: str = ""

    @property
    def met(self) -> bool:
        return self.value >= self.least

    def shortfall(self) -> str:
        words = f"{self.name}: got {self.value:g}, wanted at least {self.least:g}"
        return f"{words} ({self.advice})" if self.advice else words

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


@dataclass(frozen=True, slots=True)
class KindNeverInForce:
    """A kind of fault that the schedule of a run contains but that was never in force.

    dealt: number of cards of this kind in the schedule
    reasons: reasons why no card was in force
    """

    kind: str
    dealt: int = 0
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WaivedDemand:
    """A demand that the user waived by name.

    shortfall: the part of the demand that was not met; "" if the demand was met
    """

    name: str
    shortfall: str = ""


@dataclass(frozen=True, slots=True)
class VacuityDetails:
    """The details of the checker `vacuity` (`run_quality/vacuity.py`)."""

    criteria: tuple[Criterion, ...] = ()
    never_in_force: tuple[KindNeverInForce, ...] = ()
    never_invoked: tuple[str, ...] = ()
    waived: tuple[WaivedDemand, ...] = ()


@dataclass(frozen=True, slots=True)
class AvailabilityDetails:
    """Part of the details of the checker `availability`.

    waived: periods without a successful operation that the user waived, in words
    """

    waived: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """An error that clients received.

    fail: number of operations that failed with this error
    info: number of operations of unknown outcome with this error
    """

    error: str
    fail: int = 0
    info: int = 0


@dataclass(frozen=True, slots=True)
class StatisticsDetails:
    """The details of the checker `statistics`.

    errors: errors of clients, the most frequent first
    functions: f -> number of operations with each outcome, and "latency_ms": with or without faults -> quantiles
    refused_connections: number of operations of unknown outcome although a connection was refused
    """

    errors: tuple[ErrorCount, ...] = ()
    functions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    refused_connections: int = 0


@dataclass(frozen=True, slots=True)
class CheckerResult:
    """The result of one checker: its `Verdict`, and text for readers.

    witness: witnesses, the worst first
    title, question: text for readers; "" if the checker was unknown
    seconds: duration of judging in seconds, summed over all parts
    """

    verdict: Validity
    looked_at: Mapping[str, int | float | str | bool] = field(default_factory=dict)
    reason: str = ""
    witness: tuple[Witness, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    question: str = ""
    seconds: float = 0.0

    @staticmethod
    def of(verdict: Verdict, title: str = "", question: str = "", seconds: float = 0.0) -> CheckerResult:
        said = verdict.validity, verdict.looked_at, verdict.reason, verdict.witnesses, verdict.details
        return CheckerResult(*said, title, question, seconds)

    @property
    def why(self) -> str:
        """Return the reason of an unknown verdict, or how a valid one was decided, in one sentence; "" if none."""
        return self.reason or _detail(self.details.get("decided", ""), str, "decided")

    @property
    def violations_by_kind(self) -> Mapping[str, int]:
        """Return kind of violation -> number of violations, with or without a witness; {} if they were not counted."""
        return _detail(self.details.get(VIOLATIONS_BY_KIND, {}), dict[str, int], VIOLATIONS_BY_KIND)

    def figure(self, name: str) -> int:
        """Return the figure of this name in `looked_at`; 0 if there is none."""
        value = self.looked_at.get(name, 0)
        return 0 if isinstance(value, str) else int(value)


@dataclass(frozen=True, slots=True)
class PlantedBugResult:
    """Record of whether a run found its planted bug.

    bug: name of the planted bug
    reason: reason why it counts as found or not found
    """

    bug: str
    found: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SignerWords:
    """The signer of a run.

    by: a `checkers.sealing.manifest.SignedBy`
    key: fingerprint of the signer's key
    words: the signer as a clause
    """

    by: str
    key: str = ""
    words: str = ""


@dataclass(frozen=True, slots=True)
class FindingStory:
    """A run that `find` made, with its purpose and its result, described for a user of the system.

    name: name of the finding or of the run without a bug
    clean: True for a run without a bug, such as the counterpart of the finding
    as_expected: True if the finding was reproduced, or if the run without a bug is valid
    words: the effect on a user's data, or the purpose of the run
    witness, published: "" unless the finding was reproduced
    """

    name: str
    clean: bool
    as_expected: bool
    system: str
    configuration: str
    words: str
    witness: str = ""
    published: str = ""


@dataclass(frozen=True, slots=True)
class Results:
    """The content of results.json.

    verdict: verdict of the run
    checkers: name -> result of the checker
    exit_code: 0 valid, 1 invalid, 2 unknown, 3 the harness failed
    summary: one or two sentences for readers
    reason: reason why the verdict differs from that of the checkers; "" if it does not
    judged_by: "in process", or Spark and its master
    judging_s: duration of judging in seconds
    lost_elements: the servers that had acknowledged lost elements, and the faults in force at that time
    contradiction: online findings that the judging of the sealed run does not confirm
    failure: reason why there was no test, or why judging did not finish
    report_failure: reason why there is no page
    not_tested: True if no test took place although the harness did not fail
    before: name of the file with the earlier results if this judging rejected the run
    planted: None without a planted bug
    signer: None if an older version judged the run
    finding: None unless `find` made the run
    """

    verdict: RunVerdict
    checkers: Mapping[str, CheckerResult] = field(default_factory=dict)
    exit_code: int | None = None
    summary: str = ""
    reason: str = ""
    judged_by: str = ""
    judging_s: float | None = None
    lost_elements: str = ""
    contradiction: str = ""
    failure: str = ""
    report_failure: str = ""
    not_tested: bool = False
    before: str = ""
    planted: PlantedBugResult | None = None
    signer: SignerWords | None = None
    finding: FindingStory | None = None

    @property
    def words(self) -> str:
        """Return the verdict in words, or ""."""
        return self.summary or self.reason

    @property
    def invalid(self) -> Mapping[str, CheckerResult]:
        """Return the checkers that found violations, by name."""
        return {name: checker for name, checker in self.checkers.items() if checker.verdict is Validity.INVALID}

    @property
    def vacuity(self) -> VacuityDetails:
        return self._details(VACUITY, VacuityDetails)

    @property
    def availability(self) -> AvailabilityDetails:
        return self._details(AVAILABILITY, AvailabilityDetails)

    @property
    def statistics(self) -> StatisticsDetails:
        return self._details(STATISTICS, StatisticsDetails)

    def unknown(self) -> Results:
        """Return a copy of these results with the verdict unknown."""
        return replace(self, verdict=RunVerdict.UNKNOWN, exit_code=EXIT_CODES[Validity.UNKNOWN])

    def verdict_of(self, name: str) -> Validity | None:
        """Return the verdict of a checker; None if it did not judge."""
        return self.checkers[name].verdict if name in self.checkers else None

    def _details(self, checker: str, type_: type[_T]) -> _T:
        found = self.checkers[checker].details if checker in self.checkers else {}
        return _detail(found, type_, f"checkers.{checker}.details")


NO_RESULTS = Results(RunVerdict.NOT_JUDGED)
"""Results of a run that was never judged."""


def read_results(root: Path) -> Results | None:
    """Return the results of the run in `root`; None if it was never judged.  Raises BrokenFile."""
    raw = read_json(root / RESULTS)
    return None if raw is None and not (root / RESULTS).exists() else parse_results(raw)


def parse_results(raw: Any) -> Results:
    """Return the results in the content of a results.json.  Raises BrokenFile."""
    results = decoded(RESULTS, raw, Results, whole=False)
    _ = results.vacuity, results.availability, results.statistics
    _ = [checker.violations_by_kind for checker in results.checkers.values()]
    return results


def write_results(root: Path, results: Results) -> None:
    """Write results.json into the run folder.  The replacement is atomic."""
    write_text_whole(root / RESULTS, json.dumps(as_object(results), indent=1, ensure_ascii=False) + "\n")


def as_object(results: Results) -> dict[str, Any]:
    """Return the JSON object of results.json, without empty fields."""
    values = {each.name: getattr(results, each.name) for each in fields(results) if each.name != "checkers"}
    kept = {name: as_json(value) for name, value in values.items() if not _is_empty(value)}
    return {**kept, "checkers": {name: _of_checker(each) for name, each in results.checkers.items()}}


def _is_empty(value: object) -> bool:
    return value is None or value is False or value in ("", ())


def _of_checker(checker: CheckerResult) -> dict[str, Any]:
    shown = {"title": checker.title, "question": checker.question} if checker.title else {}
    witness = [_plain(each.to_json()) for each in checker.witness]
    found = {"verdict": str(checker.verdict), "looked_at": dict(checker.looked_at), "reason": checker.reason}
    return {**found, "witness": witness, "details": _plain(checker.details), **shown, "seconds": checker.seconds}


def _plain(value: Any) -> Any:
    """Return a checker's value as JSON values; floats that are not finite become None."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _detail(raw: object, type_: type[_T], at: str) -> _T:
    return decoded(f"{RESULTS}: {at}", raw, type_, whole=False)
