"""The shapes of which the drawing of a witness is made, in pixels (`picture.py` lays them out)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    y: float
    width: float
    label: str
    look: str  # ok-write, ok-read, fail, info or bad
    open: bool
    step: int | None  # place in the legal order, from 1
    dot_x: float
    title: str


@dataclass(frozen=True, slots=True)
class ProcessLane:
    y: float
    name: str
    place: str


@dataclass(frozen=True, slots=True)
class Gap:
    x: float
    words: str


@dataclass(frozen=True, slots=True)
class HeldState:
    """What the object holds between two steps of the legal order."""

    x: float
    width: float
    words: str
    step: int


@dataclass(frozen=True, slots=True)
class Bracket:
    """From the answer that must be seen to the call that did not see it."""

    x1: float
    x2: float
    y1: float
    y2: float
    words: str
    anchor: str
    text_x: float


@dataclass(frozen=True, slots=True)
class Tick:
    x: float
    words: str


@dataclass(frozen=True, slots=True)
class Context:
    """Something that lasted while the operations ran.  look: fault, leader or deposed; hue: of an epoch, 0 to 5."""

    start_ns: int
    end_ns: int
    row: str
    words: str
    look: str
    hue: int = 0


@dataclass(frozen=True, slots=True)
class Strip:
    """A context laid out.  words: as many as have room; title: all of them."""

    x: float
    y: float
    width: float
    words: str
    title: str
    look: str
    hue: int


@dataclass(frozen=True, slots=True)
class Picture:
    css: str
    width: float
    height: float
    gutter: float
    lanes: list[ProcessLane]
    bars: list[Bar]
    path: list[tuple[int, float, float, float, float]]
    gaps: list[Gap]
    ticks: list[Tick]
    held: list[HeldState]
    held_y: float
    bracket: Bracket | None
    last_step: int
    strips: list[Strip]
    strip_rows: list[tuple[float, str]]
