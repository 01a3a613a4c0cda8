"""Parts of which workloads are composed: generators, the choice of a key, and the pace of all threads."""

from workloads.generators.combinators import (
    Call,
    InOrder,
    Limit,
    Mix,
    PerKey,
    Phases,
    Stagger,
    Until,
    reserve,
)
from workloads.generators.generator import Generator, Step, Turn, Wait
from workloads.generators.keys import Pick, moving, reads_of, uniform, zipf, zipf_of_moving
from workloads.generators.pace import Bursts, Pace, Steady, Steps, ThreadPace

__all__ = [
    "Bursts",
    "Call",
    "Generator",
    "InOrder",
    "Limit",
    "Mix",
    "Pace",
    "PerKey",
    "Phases",
    "Pick",
    "Stagger",
    "Steady",
    "Step",
    "Steps",
    "ThreadPace",
    "Turn",
    "Until",
    "Wait",
    "moving",
    "reads_of",
    "reserve",
    "uniform",
    "zipf",
    "zipf_of_moving",
]
