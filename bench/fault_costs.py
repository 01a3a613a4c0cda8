"""How long faults take to come into force and to go again, per kind and backend, from what runs recorded.

    python -m bench.fault_costs results results/nightly

Three figures come from each record of a fault (milliseconds):

    apply    the order, from its begin until every node or switch has confirmed it (`apply_ms`)
    seen     from there until the end of the first measurement, which takes a window of 300 ms for links
    heal     the heal, from its order until it is confirmed; a server that starts again is part of it

Skipped faults are left out.  A record holds no moment per node, so a spread over the nodes of one fault does not follow
from it; the table shows the spread over faults.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import click

from checkers.record.faults import FaultRecord
from checkers.record.journal import JOURNAL
from checkers.record.reading import RunRecord

_MS = 1e6
_FIGURES = ("apply", "seen", "heal")


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
def main(folders: tuple[Path, ...]) -> None:
    costs: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    runs = 0
    for place in sorted({path.parent for folder in folders for path in folder.rglob(JOURNAL)}):
        header = RunRecord(place).header
        if place.is_symlink() or header is None:
            continue
        runs += 1
        for record in RunRecord(place).faults:
            for name, value in _costs(record):
                costs[record.card.kind, str(header.spec["backend"])][name].append(value)
    head = "".join(f"{f'{name} median':>14}{'p90':>9}{'worst':>10}" for name in _FIGURES)
    print(f"{'kind':<12}{'backend':<12}{'faults':>7}{head}   (ms, {runs} runs)")
    for (kind, backend), figures in sorted(costs.items()):
        print(f"{kind:<12}{backend:<12}{len(figures['apply']):>7}{_row(figures)}")


def _costs(record: FaultRecord) -> Iterator[tuple[str, float]]:
    """The figures that a record has."""
    if not record.carried_out or record.apply_ms < 0:
        return
    yield "apply", record.apply_ms
    first = [measured.to_ns for measured in record.measured if measured.phase == "inject"]
    if first:
        yield "seen", (min(first) - record.injected_ns) / _MS
    if record.healed and record.heal_ordered_ns >= 0:
        yield "heal", (record.healed_ns - record.heal_ordered_ns) / _MS


def _row(figures: Mapping[str, Sequence[float]]) -> str:
    cells = ""
    for name in _FIGURES:
        values = sorted(figures.get(name, ()))
        if values:
            p90 = values[min(len(values) - 1, int(0.9 * len(values)))]
            cells += f"{median(values):>14,.1f}{p90:>9,.1f}{values[-1]:>10,.1f}"
        else:
            cells += f"{'-':>14}{'-':>9}{'-':>10}"
    return cells


if __name__ == "__main__":
    main()
