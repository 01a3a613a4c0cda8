"""Draws tests at random over one system: which workload, which kinds of fault, how many clients, which seed.

Test number i of a hunt follows from the hunt's seed and i alone.  So a hunt that was broken off goes on with the tests
that it would have run.  Workloads and kinds of fault are dealt like decks of cards, without replacement: after as
many tests as there are names, each name has had its turn.  Everything else is drawn independently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from harness.registry import load_subject, offered_workloads
from harness.run.kinds_that_fit import why_not
from harness.run.refused_before_start import check_spec
from harness.spec import Spec, WrongSpec
from nemesis.catalog import KINDS, NONE

CONCURRENCIES = (8, 10, 16, 24)
KEYS = (1, 2, 5, 10)
OP_TIMEOUTS_S = (0.7, 2.0, 5.0)
MORE_KINDS = (0, 0, 1, 1, 2)
"""How many kinds of fault are combined with the one that was dealt; each entry is as likely as the others."""
SEEDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Choices:
    """What a hunt draws from.  base: what all tests have in common.  kinds: of fault, NONE among them.
    left_out: a kind of fault that cannot be used here, and why."""

    base: Spec
    workloads: tuple[str, ...]
    kinds: tuple[str, ...]
    nodes: tuple[int, ...]
    rates_hz: tuple[float, ...]
    left_out: tuple[tuple[str, str], ...] = ()


def choices(
    base: Spec, workloads: Sequence[str], kinds: Sequence[str], nodes: Sequence[int], rates_hz: Sequence[float]
) -> Choices:
    """What can be drawn for this system on this backend.

    base: its backend is a name other than "auto".  workloads, kinds: () for all that fit.
    Raises WrongSpec where nothing fits, or where a name that was given does not.
    """
    usable = tuple(name for name in workloads or offered_workloads(load_subject(base.subject)) if _fits(base, name))
    if not usable:
        raise WrongSpec(f"there is no workload with which {base.subject} can be hunted")
    first, left_out = replace(base, workload=usable[0]), []
    fitting = []
    for kind in kinds or (NONE, *KINDS):
        why = next(filter(None, (why_not(replace(first, nodes=count), kind) for count in nodes)), "")
        if why and kinds:
            raise WrongSpec(f"nemesis {kind} cannot be used here: {why}")
        if why:
            left_out.append((kind, why))
        else:
            fitting.append(kind)
    for name in workloads:
        check_spec(replace(base, workload=name, nemesis=fitting[0], nodes=nodes[0]))
    return Choices(base, usable, tuple(fitting), tuple(nodes), tuple(rates_hz), tuple(left_out))


def draw(choices: Choices, seed: int, number: int) -> Spec:
    """Test `number` of the hunt with this seed.  number: from 0."""
    rng = Random(f"{seed}/{number}")
    kind, others = dealt(choices.kinds, seed, "kinds", number), [k for k in choices.kinds if k != NONE]
    nemesis = [kind]
    if kind != NONE:
        others.remove(kind)
        nemesis += rng.sample(others, min(rng.choice(MORE_KINDS), len(others)))
    return replace(
        choices.base,
        workload=dealt(choices.workloads, seed, "workloads", number),
        nemesis=",".join(nemesis),
        nodes=rng.choice(choices.nodes),
        rate_hz=rng.choice(choices.rates_hz),
        concurrency=rng.choice(CONCURRENCIES),
        keys=rng.choice(KEYS),
        op_timeout_s=rng.choice(OP_TIMEOUTS_S),
        seed=rng.randrange(SEEDS),
    )


def dealt(names: Sequence[str], seed: int, stream: str, number: int) -> str:
    """The card with this number, where the deck is shuffled anew each time that it is used up."""
    turn, place = divmod(number, len(names))
    return Random(f"{seed}/{stream}/{turn}").sample(names, len(names))[place]


def _fits(base: Spec, workload: str) -> bool:
    """Whether this workload may go with the planted bug of this hunt; without one every workload may."""
    bug = load_subject(base.subject).bugs.get(base.bug or "")
    return bug is None or workload in bug.workloads
