"""Was the fault real?  Measured in the data plane, never concluded from an order that returned without an error.

Links are judged by beacons on *every* directed pair, the cut ones and the whole ones: a partition that also cuts what
it should have left whole is not the fault that was ordered.  Processes are judged by their state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import permutations

from nemesis.cluster import Beacons, Link
from nemesis.faults import Achieved, Proof
from system_under_test.subject import ProcessState

AS_ORDERED = "as ordered"
NOT_AS_ORDERED = "not as ordered"
INDETERMINATE = "indeterminate"

SENT_MIN = 50
"""Fewer beacons than this prove no silence."""
WINDOW_S = 0.3
INTERVAL_MS = 2.0
"""150 beacons a link: three times what is needed, for a sender that is starved of CPU."""

_WORDS_MAX = 12
"""A total failure would otherwise list every pair of nodes."""


def links_proof(
    cut: Collection[Link], nodes: Sequence[str], beacons: Mapping[Link, Beacons], earlier: Proof | None = None
) -> Proof:
    """Whether exactly the links in `cut`, out of all directed pairs of `nodes`, are silent.

    A link is cut if 0 of at least `SENT_MIN` beacons arrived, open if at least one did, else indeterminate.  One link
    found contrary to order outweighs any number of indeterminate ones.
    earlier: the proof of a window before this one, under the same fault; its beacons count too, so that a sender
    starved of CPU needs more windows, not luck.
    """
    if earlier is not None:
        beacons = _added(beacons, earlier.links)
    contrary: list[str] = []
    unclear: list[str] = []
    for a, b in permutations(nodes, 2):
        seen = beacons.get((a, b))
        ordered_cut = (a, b) in cut
        order = "cut" if ordered_cut else "open"
        if seen is None:
            unclear.append(f"{a}>{b} ordered {order}: no beacons were reported")
        elif seen.received > 0:
            if ordered_cut:
                contrary.append(f"{a}>{b} ordered cut: {seen.received} of {seen.sent} beacons arrived")
        elif seen.sent < SENT_MIN:
            unclear.append(f"{a}>{b} ordered {order}: only {seen.sent} beacons were sent and none arrived")
        elif not ordered_cut:
            contrary.append(f"{a}>{b} ordered open: none of {seen.sent} beacons arrived")
    return Proof(
        verdict=NOT_AS_ORDERED if contrary else INDETERMINATE if unclear else AS_ORDERED,
        links={f"{a}>{b}": (seen.sent, seen.received) for (a, b), seen in sorted(beacons.items())},
        wrong=_shortened([*contrary, *unclear]),
    )


def states_proof(ordered: Mapping[str, ProcessState], seen: Mapping[str, ProcessState]) -> Proof:
    """Whether every server in `ordered` is in the process state ordered for it; a server nobody could ask is
    indeterminate.  Servers without an order are recorded and not judged."""
    contrary = [
        f"{server} ordered {state}: it is {seen[server]}"
        for server, state in sorted(ordered.items())
        if server in seen and seen[server] != state
    ]
    unclear = [
        f"{server} ordered {state}: its agent did not say what it is"
        for server, state in sorted(ordered.items())
        if server not in seen
    ]
    return Proof(
        verdict=NOT_AS_ORDERED if contrary else INDETERMINATE if unclear else AS_ORDERED,
        states=dict(sorted(seen.items())),
        wrong=_shortened([*contrary, *unclear]),
    )


def both(links: Proof, states: Proof) -> Proof:
    """One proof out of a proof of links and a proof of states: as ordered only if both are."""
    verdicts = (links.verdict, states.verdict)
    worst = next((v for v in (NOT_AS_ORDERED, INDETERMINATE) if v in verdicts), AS_ORDERED)
    return Proof(worst, links.links, states.states, _shortened([*links.wrong, *states.wrong]))


def achieved(inject: Proof | None, heal: Proof | None) -> tuple[Achieved, str]:
    """What became of a fault, and why, from what was measured after inject and after heal (None = not measured yet).

    A fault that was not healed as ordered is as untrue as one that was never there: what followed ran under another
    fault than the record says.
    """
    found = [(p, w) for p, w in ((inject, "after inject"), (heal, "after heal")) if p is not None]
    for verdict, outcome in ((NOT_AS_ORDERED, Achieved.NOT_ACHIEVED), (INDETERMINATE, Achieved.INDETERMINATE)):
        for proof, when in found:
            if proof.verdict == verdict:
                return outcome, f"{when}: {'; '.join(proof.wrong)}"
    if inject is None:
        return Achieved.INDETERMINATE, "it was not measured after inject"
    return Achieved.INSTALLED, ""


def _added(beacons: Mapping[Link, Beacons], earlier: Mapping[str, tuple[int, int]]) -> dict[Link, Beacons]:
    total = dict(beacons)
    for words, (sent, received) in earlier.items():
        a, _, b = words.partition(">")
        seen = total.get((a, b), Beacons(0, 0))
        total[a, b] = Beacons(seen.sent + sent, seen.received + received)
    return total


def _shortened(words: Sequence[str]) -> tuple[str, ...]:
    if len(words) <= _WORDS_MAX:
        return tuple(words)
    return (*words[:_WORDS_MAX], f"and {len(words) - _WORDS_MAX} more")
