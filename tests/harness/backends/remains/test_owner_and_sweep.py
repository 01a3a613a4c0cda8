from __future__ import annotations

import subprocess
import sys
import time

from hypothesis import given
from hypothesis import strategies as st

from harness.backends.leftovers import Swept, current_owner, is_dead, sweep


def owner_of_a_dead_process() -> str:
    words = "from harness.backends.leftovers import current_owner; print(current_owner())"
    return subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout.strip()


def changed(owner: str, part: int, value: str) -> str:
    parts = owner.split(":", 4)
    parts[part] = value
    return ":".join(parts)


def test_this_process_lives_and_a_finished_one_does_not() -> None:
    assert not is_dead(current_owner())
    assert is_dead(owner_of_a_dead_process())


def test_a_reused_process_number_is_not_the_owner() -> None:
    assert is_dead(changed(current_owner(), 1, "1"))


def test_an_owner_of_an_earlier_boot_is_dead() -> None:
    assert is_dead(changed(current_owner(), 2, "00000000-0000-0000-0000-000000000000"))


def test_who_cannot_be_seen_from_here_counts_as_alive() -> None:
    dead = owner_of_a_dead_process()
    assert not is_dead(changed(dead, 3, "1"))  # another pid namespace
    assert not is_dead(changed(dead, 4, "another-machine"))


def test_a_corpse_is_dead() -> None:
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from harness.backends.leftovers import current_owner; print(current_owner(), flush=True)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    owner = child.stdout.readline().strip()
    child.stdout.read()  # the end of its output: it is a zombie now, or about to be
    try:
        while not is_dead(owner):
            time.sleep(0.01)
    finally:
        child.wait()


@given(st.text())
def test_nonsense_is_never_called_dead(owner: str) -> None:
    assert not is_dead(owner) or owner.count(":") >= 4


def test_the_sweep_removes_the_dead_and_nothing_else() -> None:
    tried: list[str] = []
    dead = owner_of_a_dead_process()
    runs = {"mine": current_owner(), "dead": dead, "stuck": dead, "unknown": "", "odd": "x:y"}

    def remove(run_id: str) -> str:
        tried.append(run_id)
        return "it has active endpoints" if run_id == "stuck" else ""

    assert sweep(runs, remove) == Swept(removed=("dead",), left=("it has active endpoints",))
    assert tried == ["dead", "stuck"]
