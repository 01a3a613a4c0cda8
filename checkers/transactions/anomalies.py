"""Names of anomalies, and the consistency models that each anomaly rules out.

Each of these models forbids everything that weaker models forbid, and more (Adya 1999; Adya, Liskov & O'Neil 2000;
Daudjee & Salem 2004; Cerone & Gotsman 2016):

    read-uncommitted    PL-1     no cycle of ww (G0); a version order exists at all
    read-committed      PL-2     no reads of aborted or intermediate data (G1a, G1b), no cycle of ww and wr (G1c)
    read-atomic         RA       a transaction sees all writes of another or none of them (Bailis et al. 2014)
    causal              CC       a transaction also sees what the transactions that it sees had seen (RA and CC as
                                 in Biswas & Enea 2019)
    repeatable-read     PL-2.99  no cycle with an rw edge (reads are of items, never of predicates)
    snapshot-isolation  PL-SI    no cycle in which no two rw edges are adjacent (G-single, G-nonadjacent)
    serializable        PL-3     both of the above

Incompatible lists rule out read-committed and stronger models, but not read-uncommitted: one of the lists shows an
aborted version, and PL-1 lets reads show anything (Kingsbury & Alvaro 2020).  G1a and G1b count every read, also the
second read of a key in one transaction.

If a transaction reads a key twice and sees two versions (`internal`), another transaction comes after the first read
and before the second.  This is a cycle with one rw, which repeatable-read forbids.  Read-atomic forbids it too, because
it gives a transaction one view.

Each model has two stronger variants, `strong-session-...` and `strong-...`.  Sessions are part of the definition of
read-atomic and causal, so these two have only the first.  `strong-session-...` counts the order in which one process
ran its transactions as a dependency.  `strong-...` also counts real time; strong-serializable is called
strict-serializable.  If a cycle needs an edge of process order or of real time, its name ends in `-process` or
`-realtime`, and it rules out only the variants that count this edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from checkers.kernels.transactions import columns as found

BASE_MODELS = (
    "read-uncommitted",
    "read-committed",
    "read-atomic",
    "causal",
    "repeatable-read",
    "snapshot-isolation",
    "serializable",
)
WITHOUT_REAL_TIME = ("read-atomic", "causal")
_STRONGER = {
    "read-uncommitted": ("read-committed",),
    "read-committed": ("read-atomic",),
    "read-atomic": ("causal",),
    "causal": ("repeatable-read", "snapshot-isolation"),
    "repeatable-read": ("serializable",),
    "snapshot-isolation": ("serializable",),
    "serializable": (),
}
PLAIN, PROCESS, REALTIME = "", "-process", "-realtime"
_PREFIX = {PLAIN: "", PROCESS: "strong-session-", REALTIME: "strong-"}
VARIANTS = (PLAIN, PROCESS, REALTIME)

STRICT_SERIALIZABLE = "strict-serializable"

ENDINGS: Mapping[str, str] = {
    "serializable": "serializable",
    "snapshot-isolation": "snapshot",
    "repeatable-read": "repeatable-read",
    "strong-session-causal": "causal",
    "strong-session-read-atomic": "read-atomic",
    "read-committed": "read-committed",
    "read-uncommitted": "read-uncommitted",
}
"""Model that a system may promise instead of strict serializability -> suffix of the names of its checkers."""

CYCLES = ("G0", "G1c", "G-single", "G-nonadjacent", "G2-item")
"""Anomalies that are cycles, worst first; each may end in -process or -realtime."""

NO_ORDER_NAME = "no-order"
"""No order of all transactions fulfils the required model, though no cycle of known dependencies shows it.

The anomaly rules out the required model and all stronger models, and proves nothing about weaker models."""

KIND_NAMES: Mapping[int, str] = {
    found.UNWRITTEN_READ: "unwritten-read",
    found.DUPLICATE_ELEMENTS: "duplicate-elements",
    found.CYCLIC_VERSIONS: "cyclic-versions",
    found.INCOMPATIBLE_ORDER: "incompatible-order",
    found.REORDERED_APPENDS: "reordered-appends",
    found.ABORTED_READ: "G1a",
    found.DIRTY_UPDATE: "dirty-update",
    found.INTERMEDIATE_READ: "G1b",
    found.FUTURE_READ: "future-read",
    found.INTERNAL: "internal",
    found.LOST_UPDATE: "lost-update",
}

_RULES_OUT: Mapping[str, tuple[str, ...]] = {
    "unwritten-read": ("read-uncommitted",),
    "duplicate-elements": ("read-uncommitted",),
    "G0": ("read-uncommitted",),
    "cyclic-versions": ("read-committed",),
    "incompatible-order": ("read-committed",),
    "reordered-appends": ("read-committed",),
    "G1a": ("read-committed",),
    "dirty-update": ("read-committed",),
    "G1b": ("read-committed",),
    "future-read": ("read-committed",),
    "G1c": ("read-committed",),
    "internal": ("read-atomic",),
    "lost-update": ("repeatable-read", "snapshot-isolation"),
    "G-single": ("repeatable-read", "snapshot-isolation"),
    "G-nonadjacent": ("repeatable-read", "snapshot-isolation"),
    "G2-item": ("repeatable-read",),
    NO_ORDER_NAME: (),
}

WORST_FIRST = (*(a + v for v in VARIANTS for a in _RULES_OUT if v == PLAIN or a in CYCLES),)


def model_name(base: str, variant: str) -> str:
    name = _PREFIX[variant] + base
    return STRICT_SERIALIZABLE if name == "strong-serializable" else name


MODELS = tuple(
    model_name(base, variant)
    for variant in VARIANTS
    for base in BASE_MODELS
    if not (variant == REALTIME and base in WITHOUT_REAL_TIME)
)
"""All models; within each variant, weaker models come first."""


@cache
def parts_of(model: str) -> tuple[str, str]:
    """Return (the base model, the variant) of a model's name."""
    return next((base, v) for v in VARIANTS for base in BASE_MODELS if model_name(base, v) == model)


def under(anomaly: str, variant: str) -> str:
    """Return the name of an anomaly whose version order is certain only under this variant.

    The suffix of the variant replaces a weaker suffix.
    """
    plain = next((anomaly.removesuffix(v) for v in (PROCESS, REALTIME) if anomaly.endswith(v)), anomaly)
    own = anomaly.removeprefix(plain)
    return plain + max(own, variant, key=VARIANTS.index)


def and_stronger(model: str) -> list[str]:
    """Return a model and every model that implies it, in the order of MODELS."""
    return [other for other in MODELS if model in implied(other)]


def in_order(models: Iterable[str]) -> list[str]:
    """Sort models in the order of MODELS."""
    chosen = set(models)
    return [model for model in MODELS if model in chosen]


def ruled_out(anomalies: Iterable[str]) -> list[str]:
    """Return the models that a history with these anomalies violates, in the order of MODELS."""
    out: set[str] = set()
    for anomaly in anomalies:
        variant = next((v for v in (PROCESS, REALTIME) if anomaly.endswith(v)), PLAIN)
        bases = _RULES_OUT[anomaly.removesuffix(variant)]
        for base in bases:
            for stronger in VARIANTS[VARIANTS.index(variant) :]:
                out |= {model_name(b, stronger) for b in _and_stronger(base)}
    return in_order(out)


def strongest(excluded: Iterable[str]) -> list[str]:
    """Return the strongest models that are not excluded: models that no other remaining model implies."""
    left = [model for model in MODELS if model not in set(excluded)]
    return [model for model in left if not any(model in implied(other) for other in left if other != model)]


def weakest(excluded: Iterable[str]) -> list[str]:
    """Return the weakest excluded models: models that imply no other excluded model."""
    out = set(excluded)
    return [model for model in MODELS if model in out and implied(model) & out == {model}]


@cache
def implied(model: str) -> frozenset[str]:
    """Return a model and all weaker models."""
    base, variant = parts_of(model)
    weaker = {b for b in BASE_MODELS if base in _and_stronger(b)}
    names = {model_name(b, v) for b in weaker for v in VARIANTS[: VARIANTS.index(variant) + 1]}
    return frozenset(names & set(MODELS))


@cache
def _and_stronger(base: str) -> frozenset[str]:
    return frozenset({base}).union(*(_and_stronger(b) for b in _STRONGER[base]))
