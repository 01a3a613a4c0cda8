"""Online checks of logs: fed in pieces and in any order, they say what the sealed judgement says of whole copies."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from random import Random

import numpy as np
import pytest
from toy_quorum import Evidence, Row, random_run

from checkers.base.verdict import Validity
from checkers.online import LIVE, NewEntries, OnlineFinding, OnlineLogs


def entries(node: str, copy: int, rows: list[Row]) -> NewEntries:
    columns = [np.array([r[name] for r in rows]) for name in ("offset", "epoch", "checksum")]
    return NewEntries(node, copy, columns[0].astype(np.int64), columns[1].astype(np.int32), columns[2].astype(np.int64))


def findings_of(rng: Random, logs: dict[str, list[Row]]) -> list[OnlineFinding]:
    """Every copy of every log, each in order and in pieces, all mixed up."""
    left = {
        (node, copy): [r for r in rows if r["copy"] == copy]
        for node, rows in logs.items()
        for copy in {r["copy"] for r in rows}
    }
    online, found = OnlineLogs(), []
    while left:
        node, copy = name = rng.choice(sorted(left))
        count = rng.randint(1, 10)
        found += online.take(entries(node, copy, left[name][:count]))
        left[name] = left[name][count:]
        if not left[name]:
            del left[name]
    assert online.entries == sum(map(len, logs.values()))
    return found


def sealed(evidence: Evidence, folder: Path) -> set[str]:
    """Kinds of what the sealed judgement finds."""
    verdict = evidence.judge(folder, "log-matching")["log-matching"]
    assert verdict.validity in (Validity.VALID, Validity.INVALID), verdict.reason
    return {w.kind for w in verdict.witnesses}


@pytest.mark.parametrize("seed", range(8))
def test_logs_of_a_correct_run_match_in_every_order_of_arrival(seed: int) -> None:
    assert findings_of(Random(seed), random_run(seed).evidence().logs) == []


def falsified(rng: Random, logs: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """The same with one entry changed, or gone, in one copy of one log."""
    changed = deepcopy(logs)
    rows = changed[rng.choice(sorted(changed))]
    at = rng.randrange(len(rows))
    match rng.randrange(4):
        case 0:
            rows[at]["checksum"] ^= 1 << 31
        case 1:
            rows[at]["epoch"] += rng.choice([-1, 1])
        case 2:
            rows[at]["epoch"], rows[at]["checksum"] = rows[at]["epoch"] + 1, 5 << 31
        case _:
            del rows[at]
    return changed


def test_a_falsified_entry_is_found_iff_the_sealed_judgement_finds_it(tmp_path: Path) -> None:
    kinds: list[str] = []
    for seed in range(35):
        rng = Random(seed)
        evidence = random_run(seed % 7).evidence()
        evidence.logs = falsified(rng, evidence.logs)
        found = {finding.witness.kind for finding in findings_of(rng, evidence.logs)}
        assert found == sealed(evidence, tmp_path / str(seed)), seed
        kinds += found
    assert set(kinds) == {"logs differ below an equal epoch", "log has a hole", "epoch went back"}


def test_the_tail_of_a_copy_is_held_against_what_others_commit_later() -> None:
    """n1 is copied with an entry of epoch 2 at offset 3, and n2 then commits another one of that epoch there."""
    online = OnlineLogs()
    common = [{"offset": i, "epoch": 1, "checksum": 7 + i} for i in range(3)]
    for node in ("n1", "n2"):
        assert online.take(entries(node, LIVE, common)) == []
    assert online.take(entries("n1", 0, [{"offset": 3, "epoch": 2, "checksum": 50}])) == []
    (finding,) = online.take(entries("n2", LIVE, [{"offset": 3, "epoch": 2, "checksum": 60}]))
    assert finding.witness.summary == (
        "The logs of n2 (as it ran) and n1 (copy 0) differ at offset 3, in the same entry of epoch 2."
    )
    kept = finding.found_at(7)
    assert (kept.time_ns, kept.offset, kept.epoch) == (7, 3, 2)


def test_an_uncommitted_tail_of_an_older_epoch_is_no_violation() -> None:
    online = OnlineLogs()
    online.take(entries("n1", 0, [{"offset": i, "epoch": 1, "checksum": i} for i in range(9)]))
    committed = [{"offset": i, "epoch": 1 if i < 3 else 2, "checksum": i if i < 3 else 90 + i} for i in range(12)]
    assert online.take(entries("n2", LIVE, committed)) == []
    assert online.take(entries("n1", LIVE, committed)) == []
