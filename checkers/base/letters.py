"""Names the operations of a witness by letters."""

from __future__ import annotations


def letter(place: int) -> str:
    """Return A to Z, then AA, AB, ... for the places 0, 1, 2, ..."""
    letters = ""
    place += 1
    while place:
        place, digit = divmod(place - 1, 26)
        letters = chr(ord("A") + digit) + letters
    return letters
