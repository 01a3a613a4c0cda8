"""Keys of an unsealed run judged whole: what is reported so far, against brute force at every length of a history."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from every_order import some_order_fits
from histories import Script
from small_domain import Op, as_events, key_of, nonsense

from checkers.base.columns import HISTORY, MalformedHistory, events_to_table
from checkers.base.history import Event, Type
from checkers.base.verdict import Validity, Verdict
from checkers.online import judge_prefix


def prefix(folder: Path, events: Sequence[Event], keys: Sequence[str], tail: bytes = b"") -> Verdict:
    """The verdict on what a stream holds so far; tail: of a batch that is being written."""
    path = folder / "history.arrows"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, HISTORY) as stream:
        for event in events:
            stream.write_table(events_to_table([event]))
    data = path.read_bytes()[:-8]  # without the end mark of the stream
    path.write_bytes(data + tail)
    return judge_prefix(path, keys)


def fits(operations: Sequence[Op], length: int) -> bool:
    """Brute force: whether some order explains the first `length` events."""
    cut = [
        Op(o.f, o.value, o.made, o.call, o.ret if o.ret is not None and o.ret < length else None)
        for o in operations
        if o.call < length
    ]
    cut = [o for o in cut if o.f not in ("read", "mismatch") or o.ret is not None]
    key, _ = key_of(cut)
    return bool(some_order_fits(*key)) if len(key.kind) else True


@pytest.mark.parametrize("seed", range(16))
def test_a_prefix_is_invalid_exactly_where_brute_force_finds_no_order(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    operations = [o for o in nonsense(rng, rng.randint(2, 6), 3, 3) if o.f != "mismatch"]
    # positions without gaps, so that each is an index of the history
    points = sorted({o.call for o in operations} | {o.ret for o in operations if o.ret is not None})
    at = {point: index for index, point in enumerate(points)}
    operations = [Op(o.f, o.value, o.made, at[o.call], None if o.ret is None else at[o.ret]) for o in operations]
    events = as_events(operations, "k")
    for length in range(1, len(events) + 1):
        verdict = prefix(tmp_path, events[:length], ["k"])
        assert (verdict.validity is Validity.INVALID) == (not fits(operations, length)), (events, length)
        if verdict.validity is Validity.VALID:
            assert any(e.type is Type.OK for e in events[:length])


def test_only_the_keys_that_were_named_are_judged(tmp_path: Path) -> None:
    bad = Script("bad").invoke(0, "read").ok(0, 7).events
    assert prefix(tmp_path, bad, ["other"]).validity is not Validity.INVALID
    assert prefix(tmp_path, bad, ["bad"]).validity is Validity.INVALID


def test_a_batch_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    events = Script("k").invoke(0, "write", 1).ok(0).invoke(1, "read").ok(1, 1).events
    torn = prefix(tmp_path, events, ["k"], np.arange(40, dtype=np.uint8).tobytes())
    assert torn.validity is Validity.VALID


def test_nothing_to_read_is_malformed(tmp_path: Path) -> None:
    with pytest.raises(MalformedHistory):
        judge_prefix(tmp_path / "history.arrows", ["k"])


def test_a_lost_write_is_called_a_stale_read_while_the_run_goes_on(tmp_path: Path) -> None:
    script = Script("k").invoke(0, "write", 1).ok(0).invoke(0, "write", 2).ok(0)
    script.invoke(1, "read").ok(1, 1).invoke(1, "read").ok(1, 1)
    [witness] = prefix(tmp_path, script.events, ["k"]).witnesses
    assert witness.kind == "stale read"
    assert "guilty" not in witness.facts
