"""A client that swallows what went wrong is warned of, wherever its file does so; a client that does not is not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from system_under_test.own.swallowed_exceptions import swallowed

EXAMPLES = Path(__file__).parents[3] / "examples"

CLIENT = """
class It(Client):
    def read(self, key):
        try:
            return self.connection.get(key)
        except {caught}:
            {then}
"""


def warnings(text: str, client: str = "It") -> list[str]:
    """File, line, place and what is wrong there, without the advice."""
    return [words.partition(", so ")[0] for words in swallowed({"mine.py": text}, client)]


@pytest.mark.parametrize(
    ("caught", "then", "warned"),
    [
        ("Exception", "return None", True),
        ("builtins.Exception", "return None", True),
        ("(OSError, BaseException)", "pass", True),
        ("Exception as problem", "raise Refused() from problem", False),
        ("library.Exception", "return None", False),
        ("KeyError", "return None", False),
    ],
)
def test_a_handler_of_every_exception_that_raises_none_is_warned_of(caught: str, then: str, warned: bool) -> None:
    text = CLIENT.format(caught=caught, then=then)
    assert warnings(text) == ["mine.py line 6: It.read catches every exception and raises none"] * warned
    assert not warnings(text, "Other")


@pytest.mark.parametrize(
    ("caught", "then", "name"),
    [
        ("(OSError, RuntimeError)", "return []", "OSError"),
        ("socket.timeout", "return None", "timeout"),
        ("redis.ConnectionError", "return None", "ConnectionError"),
        ("OSError", "raise", None),
        ("OSError", "pass", None),
        ("ConnectionRefusedError", "return None", None),
    ],
)
def test_a_value_in_place_of_a_broken_connection_is_warned_of(caught: str, then: str, name: str | None) -> None:
    words = f"mine.py line 6: It.read answers where it catches {name}, which may be a timeout"
    assert warnings(CLIENT.format(caught=caught, then=then)) == ([words] if name else [])


@pytest.mark.parametrize("call", ["contextlib.suppress(Exception)", "suppress(KeyError, BaseException)"])
def test_a_suppress_of_every_exception_is_warned_of(call: str) -> None:
    text = f"class It(Client):\n    def add(self, key, value):\n        with {call}:\n            self.c.add(key)\n"
    assert warnings(text) == ["mine.py line 3: It.add catches every exception and raises none"]
    assert not warnings(text.replace(call, "contextlib.suppress(KeyError)"))


ELSEWHERE = """
def ask(connection, *words):
    try:
        return connection.ask(*words)
    except Exception:
        return None
def not_called():
    try:
        return 7
    except Exception:
        return None
class Base(Client):
    def read(self, key):
        try:
            return self.c.get(key)
        except Exception:
            return None
    def write(self, key, value):
        with suppress(Exception):
            self.c.set(key, value)
class It(Base):
    def write(self, key, value):
        return through(self.c, "write", key, value)
def through(*words):
    return ask(*words)
"""


def test_base_classes_and_functions_that_the_client_calls_are_looked_at_and_no_others() -> None:
    assert warnings(ELSEWHERE) == [
        "mine.py line 16: Base.read catches every exception and raises none",
        "mine.py line 5: ask catches every exception and raises none",
    ]


def test_functions_in_a_file_beside_the_client_are_looked_at() -> None:
    parts = "def ask():\n    try:\n        return 1\n    except:\n        return None\n"
    main = "import parts\nclass It(Client):\n    def read(self, key):\n        return parts.ask()\n"
    [words] = swallowed({"system.py": main, "parts.py": parts}, "It")
    assert words.startswith("parts.py line 4: ask catches every exception")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_no_example_swallows_what_went_wrong(path: Path) -> None:
    text = path.read_text()
    classes = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.ClassDef)]
    clients = [each.name for each in classes if any(ast.unparse(base).endswith("Client") for base in each.bases)]
    assert clients or path.stem.startswith("simulated_")  # it has no System
    assert not [words for client in clients for words in warnings(text, client)]
