"""The verdict in words, and the small sentences the page is made of.

Everything here is derived from what the checkers said; nothing is worded by hand for a run.  Text from a run (keys,
values, errors, log lines) may be long or hostile: it is shortened here and escaped where it meets HTML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.report.load import mapping, number, sequence
from system_under_test.subject import Bug

LONGEST = 300
"""Characters of one hostile or huge text that are shown; the raw files keep it all."""

_UNITS = {"_rate_hz": "/s", "_per_s": "/s", "_hz": "/s", "_ms": " ms", "_s": " s", "_bytes": " bytes", "_share": ""}


def verdict_in_words(results: Mapping[str, Any], test: Mapping[str, Any]) -> str:
    """One or two sentences: what the run showed.  For the terminal, results.json and the head of the page."""
    head = headline(results)
    bug = planted(results, test)
    return f"{head} {bug.words}" if bug else head


def headline(results: Mapping[str, Any]) -> str:
    """The verdict as one sentence."""
    if results.get("contradiction"):
        return sentence(shorten(str(results["contradiction"]), 2 * LONGEST))
    checkers = {str(k): mapping(v) for k, v in mapping(results.get("checkers")).items()}
    verdict = results.get("verdict")
    if verdict == "invalid":
        worst = findings(results)
        if not worst:
            return "Invalid, but no checker kept its evidence."
        first = sentence(worst[0].summary)
        first = lower_first(first) if first.split(" ", 1)[0] in ("At", "The", "In", "No", "Every") else first
        if len(worst) == 1:
            return f"Invalid: {first}"
        return f"Invalid: {first} {in_all(worst)}"
    if verdict == "valid":
        judged = [c for c in checkers.values() if c.get("verdict") == "valid"]
        return f"Valid: {_count(len(judged), 'checker')} looked and found nothing wrong{_of_what(checkers)}."
    unknown = [(name, c) for name, c in checkers.items() if c.get("verdict") == "unknown"]
    if not unknown:
        return "Unknown: this run has not been judged."
    name, first_unknown = unknown[0]
    reason = sentence(str(first_unknown.get("reason") or f"{title(name, first_unknown)} could not decide"))
    more = f" {_count(len(unknown) - 1, 'more checker')} could not decide either." if len(unknown) > 1 else ""
    return f"Unknown: {lower_first(reason)}{more}"


def in_all(found: Sequence[Finding]) -> str:
    """How many violations there are, if more than one: a sentence, or ""."""
    by = len({f.checker for f in found})
    return (
        f"{'One checker' if by == 1 else f'{by} checkers'} found {len(found)} violations in all."
        if len(found) > 1
        else ""
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation: who found it, and its witness as stored in results.json."""

    checker: str
    title: str
    kind: str
    summary: str
    witness: Mapping[str, Any]


def findings(results: Mapping[str, Any]) -> list[Finding]:
    """Every violation of the run, in the order of the checkers, a checker's worst first."""
    out = []
    for name, raw in mapping(results.get("checkers")).items():
        checker = mapping(raw)
        if checker.get("verdict") != "invalid":
            continue
        for witness in (mapping(w) for w in sequence(checker.get("witness"))):
            kind = shorten(str(witness.get("kind") or "violation"))
            summary = shorten(str(witness.get("summary") or f"{kind}, found by {name}"))
            out.append(Finding(str(name), title(str(name), checker), kind, summary, witness))
    return out


@dataclass(frozen=True, slots=True)
class Planted:
    """A planted bug and whether the run showed it, for the right reason."""

    name: str
    found: bool
    words: str


def planted(results: Mapping[str, Any], test: Mapping[str, Any]) -> Planted | None:
    """None for a clean system.  Found counts only by the expected checker, with a witness of the planted kind."""
    spec = mapping(test.get("spec"))
    name = spec.get("bug")
    if not name:
        return None
    bug = known_bug(str(spec.get("subject", "")), str(name))
    if bug is None:
        invalid = results.get("verdict") == "invalid"
        return Planted(str(name), invalid, f"Planted bug {name}: {'found' if invalid else 'not found'}.")
    checker = mapping(mapping(results.get("checkers")).get(bug.found_by))
    kinds = {str(mapping(w).get("kind")) for w in sequence(checker.get("witness"))}
    if checker.get("verdict") == "invalid" and (not bug.witness_kinds or kinds & set(bug.witness_kinds)):
        return Planted(bug.name, True, f"Planted bug {bug.name}: found by {bug.found_by}.")
    if checker.get("verdict") == "invalid":
        return Planted(
            bug.name,
            False,
            f"Planted bug {bug.name}: {bug.found_by} is invalid, but for another reason ({', '.join(sorted(kinds))}).",
        )
    others = " Another checker is invalid." if results.get("verdict") == "invalid" else ""
    return Planted(bug.name, False, f"Planted bug {bug.name}: not found by {bug.found_by}.{others}")


def known_bug(subject: str, name: str) -> Bug | None:
    """What the subject says of its planted bug; None if this version knows no such subject or bug, or cannot load it:
    a report on an old run must not fail for that."""
    from harness.registry import load_subject
    from harness.spec import WrongSpec

    try:
        return load_subject(subject).bugs.get(name)
    except (WrongSpec, ImportError):
        return None


def title(name: str, checker: Mapping[str, Any]) -> str:
    """A checker's title for people."""
    return shorten(str(checker.get("title") or name.replace("-", " ").replace("_", " ").capitalize()))


def looked_at(figures: Mapping[str, Any]) -> str:
    """{"keys": 10, "operations": 11873, "longest_gap_s": 1.2} -> "10 keys, 11,873 operations, longest gap 1.2 s"."""
    return ", ".join(_figure(str(name), value) for name, value in figures.items())


def amount(value: Any, name: str = "") -> str:
    """A figure for people: thousands separated, the unit its name ends in."""
    unit = next((u for suffix, u in _UNITS.items() if name.endswith(suffix)), "")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}{unit}"
    if isinstance(value, float):
        if name.endswith("_share"):
            return f"{value:.0%}".replace("%", " %")
        return (f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}") + unit
    return shorten(str(value))


def label(name: str) -> str:
    """A figure's name for people, without its unit."""
    suffix = next((s for s in _UNITS if name.endswith(s)), "")
    return name[: len(name) - len(suffix)].replace("_", " ").replace("-", " ")


def shorten(text: str, most: int = LONGEST) -> str:
    """Text of at most `most` characters, on one line, without control characters."""
    flat = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+", " ", text[: most * 4])
    return flat if len(flat) <= most and len(text) <= most * 4 else flat[: most - 1] + "…"


def checksum_words(checksum: Any) -> str:
    """The checksum of a record (schema LOG) as one compares it: the CRC of its batch, without the place in it."""
    if not isinstance(checksum, int):
        return shorten(str(checksum), 8)
    return f"{(checksum >> 31 or checksum) & 0xFFFFFFFF:08x}"


def sentence(text: str) -> str:
    """Text that ends as a sentence does."""
    text = text.strip()
    return text if text.endswith((".", "!", "?", "…")) else text + "."


def lower_first(text: str) -> str:
    """The same sentence, to go on after a colon: lower case unless its first word is a name or an acronym."""
    return text[0].lower() + text[1:] if len(text) > 1 and text[1].islower() else text


def seconds(ns: int | float, digits: int = 3) -> str:
    """Nanoseconds as seconds with a unit."""
    return f"{ns / 1e9:,.{digits}f} s"


def notes(results: Mapping[str, Any], outcome: Mapping[str, Any]) -> list[str]:
    """What a reader must know next to the verdict: how far the harness itself kept up (rule: said, never hidden)."""
    out = []
    if outcome.get("set_up_failure"):
        out.append(f"Set-up failed: {sentence(shorten(str(outcome['set_up_failure'])))}")
    if outcome.get("interrupted"):
        out.append("The run was interrupted: it is judged as far as it went.")
    if stopped := mapping(outcome.get("stopped")):
        what = sentence(shorten(str(stopped.get("summary"))))
        at = seconds(number(stopped.get("time_ns"), 0), 1)
        out.append(
            f"The run was stopped early, {at} after it began, by an online check of {stopped.get('checker')}: {what}"
        )
    if failure := mapping(outcome.get("online")).get("failure"):
        out.append(
            f"Online checks failed and were given up ({shorten(str(failure))}); the sealed run was judged in full."
        )
    wanted, got = outcome.get("scheduled_rate_hz"), outcome.get("achieved_rate_hz")
    if isinstance(wanted, int | float) and isinstance(got, int | float) and 0 < got < 0.8 * wanted:
        out.append(f"Outside faults clients reached {got:.0f} operations a second of the {wanted:.0f} asked for.")
    stalls = [number(mapping(s).get("stall_ms"), 0) for s in sequence(outcome.get("loop_stalls"))]
    if stalls:
        times = "once" if len(stalls) == 1 else f"{len(stalls)} times"
        out.append(f"The harness’ own loop stalled {times}, for up to {max(stalls):,} ms.")
    steal = {n: s for n, s in mapping(outcome.get("steal_s")).items() if isinstance(s, int | float) and s > 0.5}
    if steal:
        lost = listed([f"{n} {s:.1f} s" for n, s in sorted(steal.items())])
        out.append(f"The machine took CPU time away from nodes: {lost}.")
    return out


def listed(items: Sequence[str]) -> str:
    """`a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def either(items: Sequence[str]) -> str:
    """`a, b or c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} or {items[-1]}" if items else ""


def plural(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return _count(count, noun)


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _figure(name: str, value: Any) -> str:
    words = label(name)
    if words.endswith("seconds") and isinstance(value, int | float) and not isinstance(value, bool):
        kind = words.removesuffix("seconds").removesuffix("in ").strip()
        return f"{kind} {amount(value)} s".strip()
    if words.startswith("seconds ") and isinstance(value, int | float):
        return f"{amount(value)} s {words.removeprefix('seconds ')}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if any(name.endswith(suffix) for suffix in _UNITS) and isinstance(value, int | float):
            return f"{words} {amount(value, name)}"
        singular = value == 1 and words.endswith("s") and not words.endswith("ss")
        return f"{amount(value)} {words[:-1] if singular else words}"
    return f"{words}: {amount(value)}"


def _of_what(checkers: Mapping[str, Mapping[str, Any]]) -> str:
    """How much was seen, from the largest figures named operations and keys."""
    seen: dict[str, int] = {}
    for checker in checkers.values():
        for name in ("operations", "keys"):
            value = mapping(checker.get("looked_at")).get(name)
            if isinstance(value, int):
                seen[name] = max(seen.get(name, 0), value)
    if "operations" not in seen:
        return ""
    keys = f" on {_count(seen['keys'], 'key')}" if "keys" in seen else ""
    return f" in {_count(seen['operations'], 'operation')}{keys}"
