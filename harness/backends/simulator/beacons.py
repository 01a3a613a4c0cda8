"""Beacons between simulated nodes, counted from the times at which links were cut: none is really sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from random import Random

from nemesis.cluster import Beacons, Link, Marks
from simulation.network import Impairment


@dataclass(frozen=True, slots=True)
class _Stretch:
    """first: the number of the first beacon that was sent while these links were cut and impaired in this way."""

    first: int
    cut: frozenset[Link]
    impaired: Mapping[Link, Impairment]


class CountedBeacons:
    """Every node sends a beacon on each of its links every `interval_s`, all at the same moments."""

    def __init__(self, nodes: Collection[str], random: Random, interval_s: float, now_s: float) -> None:
        self._links = [(a, b) for a in nodes for b in nodes if a != b]
        self._random = random
        self._interval_s = interval_s
        self._counted, self._since_s = 0, now_s
        self._stretches = [_Stretch(1, frozenset(), {})]

    def sent(self, now_s: float) -> int:
        return self._counted + int((now_s - self._since_s) / self._interval_s)

    def beat(self, interval_s: float, now_s: float) -> None:
        self._counted, self._since_s = self.sent(now_s), now_s
        self._interval_s = interval_s

    def changed(self, cut: Collection[Link], impaired: Mapping[Link, Impairment], now_s: float) -> None:
        """From now on these links are cut and impaired."""
        self._stretches.append(_Stretch(self.sent(now_s) + 1, frozenset(cut), impaired))

    def marks(self, now_s: float) -> Marks:
        return dict.fromkeys(self._links, self.sent(now_s))

    def arrived(self, first: Marks, last: Marks) -> Mapping[Link, Beacons]:
        return {link: self._between(link, first[link], last[link]) for link in first if link in last}

    def _between(self, link: Link, first: int, last: int) -> Beacons:
        received = 0
        ends = [stretch.first for stretch in self._stretches[1:]] + [last + 1]
        for stretch, end in zip(self._stretches, ends, strict=True):
            sent = max(0, min(end, last + 1) - max(stretch.first, first + 1))
            if sent and link not in stretch.cut:
                how = stretch.impaired.get(link)
                loss = how.loss if how is not None else 0.0
                received += sent if not loss else sum(self._random.random() >= loss for _ in range(sent))
        return Beacons(last - first, received)
