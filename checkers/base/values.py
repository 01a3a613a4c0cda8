"""Values of a history: JSON text that keeps kinds and digits, and the hashable values that checkers compare.

A history stores a value as JSON if it is no 64-bit integer.  JSON has fewer kinds of values than EDN, so the text
follows four rules:

    number           keeps all its digits; no reader of this project turns it into a float that is not the same number
    set              {"#set": [elements, in one order]}
    key of a map     the key itself if it is a string, otherwise its JSON text; a string that looks like the JSON of
                     another value is put into quotes, so that 1 and "1" are two keys
    other values     plain JSON

Two values are equal only if they have the same kind: a set is no list, a map is no list of pairs, and 1 is not 1.0.

The module also shows values in sentences, and names the operations of a witness by letters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

SET = "#set"
"""The only key of an object that stands for a set."""

_ALL_DIGITS = Context(prec=10_000, Emax=MAX_EMAX, Emin=MIN_EMIN)

SHORT = 40
"""Maximum length of payloads in characters whose decoded values are cached: an invoke and its answer are often equal.
"""


class SetValue(tuple[Hashable, ...]):
    """The elements of a set in one order.  A set equals only another set, never a list."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SetValue) and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((SET, tuple(self)))

    def __repr__(self) -> str:
        return f"#{{{', '.join(map(repr, self))}}}"


class MapValue(tuple[tuple[str, Hashable], ...]):
    """The entries of a map, (key, value) in order of keys.  A map equals only another map, never a list of pairs."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MapValue) and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(("#map", tuple(self)))

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{key}: {value!r}' for key, value in self)}}}"


def number_of(text: str) -> float | Decimal:
    """Return the exact value of a number with a fraction or an exponent.

    Returns a float if the shortest text of this float is the number, otherwise a Decimal.  So two numbers are equal
    only if all their digits are.  Raises ValueError if the exponent is too large for a Decimal.
    """
    short = float(text)
    try:
        exact = Decimal(text)
    except InvalidOperation as problem:
        raise ValueError(f"the number {text:.40} is too large or too small") from problem
    if not exact.is_finite():
        raise ValueError(f"the number {text:.40} is too large or too small")
    return short if Decimal(repr(short)) == exact else exact


def parse(text: str) -> Any:
    """Return a JSON value with exact numbers; lists and objects stay lists and dicts.  Raises ValueError."""
    # json.loads takes three times as long for a short text: it searches for whitespace around the value
    if text[:1] in '"[{':
        value, end = _DECODER.raw_decode(text)
        if end == len(text):
            return value
    return _DECODER.decode(text)


_DECODER = json.JSONDecoder(parse_float=number_of, parse_constant=str)
"""Decoder that reads NaN and Infinity, which Python writes although they are not JSON, as strings.

As a number, NaN would not even equal itself.
"""


def decode(text: str) -> Hashable:
    """Return the hashable value of a payload.  Raises ValueError if the text is not JSON."""
    return _decode_short(text) if len(text) <= SHORT else frozen(parse(text))


@lru_cache(maxsize=10_000)
def _decode_short(text: str) -> Hashable:
    return frozen(parse(text))


def forget_decoded() -> None:
    """Clear the cache of decoded payloads before a measurement."""
    _decode_short.cache_clear()


def frozen(value: Any) -> Hashable:
    """Return a JSON value in a form that can be hashed: lists become tuples, objects a MapValue or a SetValue."""
    if isinstance(value, list):
        return tuple(map(frozen, value))
    if isinstance(value, dict):
        if len(value) == 1 and isinstance(elements := value.get(SET), list):
            return SetValue(map(frozen, elements))
        return MapValue((str(key), frozen(value[key])) for key in sorted(value, key=str))
    result: Hashable = value
    return result


def encode(value: Any) -> str:
    """Return the JSON text of a value: None, bool, number, string, list, dict with string keys, or SetValue."""
    try:
        return json.dumps(value) if not _holds_set(value) else _encoded(value)
    except TypeError:
        return _encoded(value)


def _holds_set(value: Any) -> bool:
    if isinstance(value, SetValue):
        return True
    if isinstance(value, list | tuple):
        return any(map(_holds_set, value))
    return isinstance(value, dict) and any(map(_holds_set, value.values()))


def _encoded(value: Any) -> str:
    match value:
        case Decimal():
            return str(value)
        case SetValue():
            return f'{{"{SET}": [{", ".join(map(_encoded, value))}]}}'
        case list() | tuple():
            return f"[{', '.join(map(_encoded, value))}]"
        case dict():
            return f"{{{', '.join(f'{json.dumps(key)}: {_encoded(each)}' for key, each in value.items())}}}"
    return json.dumps(value)


def for_json(value: Any) -> Any:
    """Return a parsed value as a report stores it: a number that no float represents becomes its text."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list):
        return list(map(for_json, value))
    return {key: for_json(each) for key, each in value.items()} if isinstance(value, dict) else value


def canonical(value: Any) -> str:
    """Return the same text for two values if and only if they are equal: JSON with the keys of maps in order."""
    match value:
        case float() | Decimal():
            number = Decimal(repr(value) if isinstance(value, float) else value).normalize(_ALL_DIGITS)
            return f"{number or 0}."
        case dict():
            return f"{{{','.join(f'{json.dumps(key)}:{canonical(value[key])}' for key in sorted(value))}}}"
        case SetValue():
            return f"#[{','.join(map(canonical, value))}]"
        case list() | tuple():
            return f"[{','.join(map(canonical, value))}]"
    return json.dumps(value)


_LIKE_JSON = re.compile(r'["#\[{]|-?\d|(?:true|false|null)$')


def name_of_key(key: Any) -> str:
    """Return the name of a key of a map; two keys have the same name only if they are equal and of one kind."""
    if isinstance(key, str):
        return json.dumps(key) if _LIKE_JSON.match(key) else key
    return canonical(key)


def text_of_key(name: str) -> str:
    """Return the name of a key without the quotes that distinguish a string from another value."""
    try:
        text = json.loads(name) if name[:1] == '"' else name
    except ValueError:
        return name
    return text if isinstance(text, str) else name


def text_of_value(key: Any) -> str:
    """Return `text_of_key` of the name of this key."""
    return text_of_key(name_of_key(key))


def in_one_order(elements: Iterable[Any]) -> SetValue:
    """Return the elements of a set in an order that does not depend on their order in the text: numbers first."""
    found = list(elements)
    if all(type(each) is int for each in found):
        return SetValue(sorted(found))

    def place(each: Any) -> tuple[bool, Any, str]:
        return not _is_number(each), each if _is_number(each) else 0, canonical(each)

    return SetValue(sorted(found, key=place))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def span_in_words(span_ns: int) -> str:
    """Return a span of time as sentences show it: 0.09 ms, 55 ms, 2.05 s."""
    if span_ns >= 1_000_000_000:
        return f"{span_ns / 1e9:.2f} s"
    return f"{span_ns / 1e6:.{0 if span_ns >= 10_000_000 else 2}f} ms"


def in_words(value: Any) -> str:
    """Return a value as sentences show it: nil, "text", [a, b], #{a, b}, {key: value}."""
    match value:
        case None:
            return "nil"
        case SetValue():
            return f"#{{{', '.join(map(in_words, value))}}}"
        case MapValue():
            return f"{{{', '.join(f'{key}: {in_words(each)}' for key, each in value)}}}"
        case tuple() | list():
            return f"[{', '.join(map(in_words, value))}]"
        case str() | int() | float():
            return json.dumps(value, ensure_ascii=False)
    return str(value)


def with_article(name: str) -> str:
    """Return "a read", "an enqueue"."""
    return f"{'an' if name[:1] in 'aeiou' else 'a'} {name}"


def letter(place: int) -> str:
    """Return the letters for a place: A to Z for 0 to 25, then AA, AB, ..."""
    letters = ""
    place += 1
    while place:
        place, digit = divmod(place - 1, 26)
        letters = chr(ord("A") + digit) + letters
    return letters
