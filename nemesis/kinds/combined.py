"""Kinds that combine cards of other kinds: messages from the past, short faults, errors before a power loss.

past    Messages from the leader arrive late.  Then messages to the leader are held, and the leader is paused.  The
        others elect a successor, and a write is acknowledged.  The old leader resumes and serves requests.  A moment
        later it receives, in order, messages that were sent before it was replaced.  A system that treats such a
        message as a new one serves stale data.
short   Pauses, cuts and delays of 0.2 to 3 s at random phases of heartbeats and elections; most of these faults are
        shorter than an election timeout.
moment  A server is hit as soon as it prints a line that its system names, or else an unusual line.  A first fault makes
        the system print such lines.
fsyncgate
        The disk of a server returns errors for a moment, and soon afterwards the server loses its power.  A server that
        ignores the error of an fsync, or continues to write after the error, acknowledges data that is not on the disk.
        The kind is named after PostgreSQL's mistake of 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NoReturn

from nemesis.cluster import DISK, LINKS, PACKETS, PROCESSES
from nemesis.coverage import ACKNOWLEDGED_MOMENT, ANY_LINE, HEALED_MOMENT
from nemesis.kind import Deck, Figure, FigureStep, Kind
from nemesis.kinds.packets import LEADER_HEARD_LATE, LEADER_HEARS_HELD, ONE_HEARS_HELD
from nemesis.kinds.packets import NAME as PACKETS_KIND

PAUSED_S_MAX = 5.0
"""Maximum seconds of a leader's pause.  The pause ends earlier if a write is acknowledged."""
SHORT_S, SHORT_GAP_S, SHORTS = (0.2, 3.0), (0.1, 1.0), 8
_SHORT = (
    ("pause", "leader"),
    ("pause", "one"),
    ("partition", "leader-alone"),
    ("partition", "one-node"),
    (PACKETS_KIND, "leader-late"),
    (PACKETS_KIND, "one-late"),
)


def _past(rng: Random, servers: int) -> Sequence[FigureStep]:
    """Hold the messages to the leader, pause the leader until its successor has answered, and deliver the held
    messages.
    """
    held_s = rng.uniform(1.5, 3.0)
    paused_s = held_s + rng.uniform(0.03, 0.15)
    longest_s = paused_s + PAUSED_S_MAX + 0.5
    after_ack_s, play_back_s = rng.uniform(0.2, 1.2), rng.uniform(0.02, 0.4)
    return [
        FigureStep(
            LEADER_HEARD_LATE, 0.0, longest_s + 0.5, kind=PACKETS_KIND, until=HEALED_MOMENT, until_step=3, until_s=1.0
        ),
        FigureStep(
            LEADER_HEARS_HELD, held_s, longest_s - held_s, again=True,
            kind=PACKETS_KIND, until=HEALED_MOMENT, until_step=3, until_s=play_back_s,
        ),
        FigureStep(
            "leader", paused_s, PAUSED_S_MAX, again=True,
            kind="pause", until=ACKNOWLEDGED_MOMENT, until_step=3, until_s=after_ack_s,
        ),
    ]  # fmt: skip


def _follower_past(rng: Random, servers: int) -> Sequence[FigureStep]:
    return [FigureStep(ONE_HEARS_HELD, 0.0, rng.uniform(2.0, 5.0), kind=PACKETS_KIND)]


def _short(faults: Sequence[tuple[str, str]]) -> Callable[[Random, int], Sequence[FigureStep]]:
    """Return a function that returns short faults in sequence; each of `faults` occurs once before one is repeated."""

    def steps(rng: Random, servers: int) -> Sequence[FigureStep]:
        dealt: list[FigureStep] = []
        at_s = 0.0
        while len(dealt) < SHORTS:
            for kind, target in rng.sample(faults, min(len(faults), SHORTS - len(dealt))):
                hold_s = SHORT_S[0] * (SHORT_S[1] / SHORT_S[0]) ** rng.random()
                dealt.append(FigureStep(target, at_s, hold_s, kind=kind))
                at_s += hold_s + rng.uniform(*SHORT_GAP_S)
        return dealt

    return steps


_AT_A_MOMENT = (*(fault for fault in _SHORT if "leader" in fault[1]), ("kill", "leader"))


def _moment(rng: Random, servers: int) -> Sequence[FigureStep]:
    """Hit the leader, and then briefly the servers that print lines because of the first fault."""
    two = rng.sample(_AT_A_MOMENT, 2)
    kind, target = rng.choice(two)
    steps = [FigureStep(target, 0.0, rng.uniform(1.0, 4.0), kind=kind)]
    for at_s in (0.0, 1.0):
        kind, target = rng.choice(two)
        hold_s = SHORT_S[0] * (SHORT_S[1] / SHORT_S[0]) ** rng.random()
        steps.append(FigureStep(target, at_s, hold_s, kind=kind, line=ANY_LINE, line_nth=rng.choice((1, 1, 1, 2, 3))))
    return steps


def _power_loss_after(errors: Sequence[str]) -> Callable[[Random, int], Sequence[FigureStep]]:
    """Return the steps of a disk that returns one of these errors, and of the power loss that follows."""

    def steps(rng: Random, servers: int) -> Sequence[FigureStep]:
        failing_s = rng.uniform(1.0, 3.0)
        loss = FigureStep("one", failing_s + rng.uniform(1.0, 4.0), rng.uniform(1.0, 3.0), again=True, kind="power")
        return [FigureStep(f"one-{rng.choice(errors)}", 0.0, failing_s, kind="disk"), loss]

    return steps


def _no_card(*_: object) -> NoReturn:
    raise ValueError("this kind deals cards of other kinds and has none of its own")


_MESSAGES = frozenset({PACKETS, LINKS, PROCESSES})


def _combined(
    name: str, summary: str, parts: Sequence[str], figures: dict[str, Figure], needs: frozenset[str] = _MESSAGES
) -> Kind:
    """Return a kind that deals its first figure most often, or only its last figure if the system does not report its
    leader.
    """
    first, *_, last = figures
    return Kind(
        name=name,
        summary=summary,
        targets={},
        deck=Deck(((first, 0.0),), (first, first, *figures), ((last, 0.0),), figures),
        needs=needs,
        resolve=_no_card,
        inject=_no_card,
        heal=_no_card,
        parts=tuple(parts),
    )


PAST = _combined(
    "past",
    "a leader that was replaced receives delayed messages from before its replacement, in order",
    (PACKETS_KIND, "pause"),
    {
        "messages-from-the-past": Figure("a paused leader resumes, and then receives old messages", _past, 3),
        "follower-hears-the-past": Figure(
            "a follower receives no message for 2-5 s, and then all held ones", _follower_past, 3
        ),
    },
)
SHORT = _combined(
    "short",
    "many pauses, cuts and delays of 0.2-3 s, of the leader and of followers",
    ("partition", PACKETS_KIND, "pause"),
    {
        "short-faults": Figure("eight faults of 0.2-3 s, one after another", _short(_SHORT), 3),
        "short-faults-of-servers": Figure(
            "eight faults of 0.2-3 s of servers drawn by the seed",
            _short([fault for fault in _SHORT if "leader" not in fault[1]]),
            3,
        ),
    },
)
MOMENT = _combined(
    "moment",
    "servers are hit as soon as they print a line that the system names, or an unusual line",
    ("partition", PACKETS_KIND, "pause", "kill"),
    {
        "moments": Figure("a fault, and two more when servers print lines that it causes", _moment, 3),
        "short-faults-of-servers": SHORT.deck.figures["short-faults-of-servers"],
    },
)
FSYNCGATE = _combined(
    "fsyncgate",
    "a server loses its power soon after its disk returned errors",
    ("disk", "power"),
    {
        "fsync-errors-then-power": Figure(
            "a disk cannot fsync for 1-3 s; then the power fails", _power_loss_after(["fsync-errors"]), 1
        ),
        "write-errors-then-power": Figure(
            "a disk cannot write, or is full, for 1-3 s; then the power fails",
            _power_loss_after(["write-errors", "full"]),
            1,
        ),
    },
    frozenset({DISK, LINKS, PROCESSES}),
)
