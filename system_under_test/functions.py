"""The functions that clients execute: their arguments, their answers, and their form in a history.

A workload names the functions that it invokes, a client has some of these functions, and a subject can run every
workload whose functions its client has.  Functions with different meanings have different names: a set's `members` and
a register's `read` are both `read` in a history, but a client must distinguish them.

A plain client has one method per function: `arguments` turns a request into the method's arguments, and `outcome` turns
its return value into an outcome.

Runs on client nodes; needs only the standard library.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from checkers.base.history import Type
from system_under_test.client import Outcome, Request

Given = Literal[
    "nothing",
    "perhaps key",
    "key",
    "value",
    "key value",
    "key value value2",
    "key payload",
    "payload",
    "payload value",
    "fields",
]
"""Parts of a request that are passed to a method, in this order.

fields: the elements of a payload that is a list, as separate arguments
"""
Answer = Literal[
    "nothing",
    "number",
    "number or nil",
    "whether",
    "token",
    "offset",
    "numbers",
    "text",
    "balances",
    "lists",
    "registers",
    "anything",
]
"""Type of the answer of a method.

lists, registers: the steps of a transaction, with a list or one number in each read
anything: any JSON value
"""

_EXPECTED: Mapping[Answer, str] = {
    "nothing": "None",
    "number": "a whole number",
    "number or nil": "a whole number or None",
    "whether": "True or False",
    "token": "a whole number or None",
    "offset": "a whole number or None",
    "numbers": "a list of whole numbers",
    "text": "a string",
    "balances": "a dictionary from account to whole number",
    "lists": "the list of steps, with a list of whole numbers in each read",
    "registers": "the list of steps, with a whole number or None in each read",
    "anything": "a JSON value: a number, a text, a list, or a dictionary with texts as keys",
}
_LARGEST = 2**63 - 1
"""Largest value in a history: Arrow's int64."""


@dataclass(frozen=True, slots=True)
class Function:
    """One function of clients.  A user's workload may declare functions that are not in this table.

    words: its effect and its answer
    given: parts of a request that its method receives
    answer: type of the answer of its method
    observes: True if the function changes nothing, so that without an answer it certainly did not happen
    refusal: error of an operation that answered False, or, for a token, None
    """

    words: str
    given: Given
    answer: Answer = "nothing"
    observes: bool = False
    refusal: str = ""


FUNCTIONS: Mapping[str, Function] = {
    "create": Function("create an object; the judged history does not contain this operation", "perhaps key"),
    "read": Function("the value of a register, None if it has none", "key", "number or nil", observes=True),
    "write": Function("set a register to a value", "key value"),
    "cas": Function(
        "set a register to `new` if it holds `expected`; True if it did",
        "key value value2",
        "whether",
        refusal="mismatch",
    ),
    "add": Function("add an element to a set", "key value"),
    "members": Function("all elements of a set", "key", "numbers", observes=True),
    "increment": Function("add an amount to a counter that begins at 0", "key value"),
    "total": Function("the value of a counter", "key", "number", observes=True),
    "enqueue": Function("put a value at the end of a queue; return once the system confirmed it", "key value"),
    "dequeue": Function("remove and acknowledge the oldest value; None if the queue is empty", "key", "number or nil"),
    "drain": Function("remove all values from a queue; the values, oldest first", "key", "numbers"),
    "append": Function("append a value to a log; its offset, None if unknown", "key value", "offset"),
    "entries": Function("the whole log from its beginning", "key", "numbers", observes=True),
    "put": Function("set the string of a key", "key payload"),
    "append_text": Function("append a string to the string of a key", "key payload"),
    "get": Function('the string of a key, "" if there is none', "key", "text", observes=True),
    "transact_lists": Function(
        'run steps ["append", key, value] and ["r", key, None] as one transaction; the steps, with a list in each read',
        "payload",
        "lists",
    ),
    "transact_registers": Function(
        'run steps ["w", key, value] and ["r", key, None] as one transaction; the steps, with a value in each read',
        "payload",
        "registers",
    ),
    "transfer": Function(
        "move an amount from one account to another; False if the source has too little",
        "fields",
        "whether",
        refusal="not enough",
    ),
    "open_account": Function("create an account with this balance; may be called twice", "fields"),
    "balances": Function(
        "account -> balance, of all accounts in one atomic read", "nothing", "balances", observes=True
    ),
    "acquire": Function("acquire a lock; True if it was free", "key", "whether", refusal="not free"),
    "release": Function("release a lock", "key"),
    "acquire_token": Function(
        "acquire a lock; its fencing token (a number that only grows), or None if it was not free",
        "key",
        "token",
        refusal="not free",
    ),
    "acquire_lease": Function(
        "acquire a lock with a lease; the milliseconds for which the server guarantees the lease, or None if it was "
        "not free",
        "key",
        "token",
        refusal="not free",
    ),
    "fenced_write": Function(
        "write to the guarded resource with a fencing token; False if a write had a greater token",
        "key value",
        "whether",
        refusal="fenced",
    ),
    "write_shown": Function(
        "set a register to a value; the position that the system reports for the write, None if none",
        "key value",
        "offset",
    ),
    "read_shown": Function(
        "the value of a register, None if it has none, and the position of the state that was read",
        "key",
        "anything",
        observes=True,
    ),
    "digest": Function(
        "a position, and a digest of this server's whole state at this position", "nothing", "anything", observes=True
    ),
    "generate": Function("an id that was never returned before", "key", "number"),
}


NO_OTHERS: Mapping[str, Function] = {}


def wrong_function(function: object) -> str:
    """Return why a user's own function is not valid; "" if it is."""
    if not isinstance(function, Function):
        return f"must be Function(words, given, answer), not {function!r:.60}"
    if function.given not in (known := get_args(Given)):
        return f"is given {function.given!r:.60}, which is none of {', '.join(map(repr, known))}"
    if function.answer not in (known := get_args(Answer)):
        return f"answers {function.answer!r:.60}, which is none of {', '.join(map(repr, known))}"
    if function.answer in ("whether", "token") and not function.refusal:
        return "needs a refusal: the error of an operation whose method answers False or None"
    return ""


def observes(function: str, own: Mapping[str, Function] = NO_OTHERS) -> bool:
    """Return True if a function changes nothing; False for an unknown function.

    own: functions that the workload declares
    """
    known = own.get(function) or FUNCTIONS.get(function)
    return known is not None and known.observes


def arguments(function: str, request: Request, own: Mapping[str, Function] = NO_OTHERS) -> tuple[Any, ...]:
    """Return the arguments of the method.  Raises ValueError if the request lacks an argument, KeyError for an unknown
    function.
    """
    given = (own.get(function) or FUNCTIONS[function]).given
    payload: Any = json.loads(request.payload) if request.payload is not None else None
    if given == "nothing":
        return ()
    if given == "fields":
        return tuple(payload or ())
    if given == "perhaps key":
        return (request.key,) if request.key is not None else ()
    values = {"key": request.key, "value": request.value, "value2": request.value2, "payload": payload}
    found = tuple(values[name] for name in given.split())
    if found[0] is None or found[-1] is None:  # a compare-and-set may expect None
        raise ValueError(f"{function} needs {given.replace(' ', ' and ')}")
    return found


class WrongAnswer(ValueError):
    """A method returned a value that its function cannot return.

    mistake: True if the method itself is wrong, because the type of the value is wrong whatever the system answered.
        None instead of a value, or a number of more than 64 bits, is no mistake of the method, because the system may
        have lost or corrupted its data.
    """

    def __init__(self, words: str, *, mistake: bool) -> None:
        super().__init__(words)
        self.mistake = mistake


class _LostByTheSystem(TypeError):
    """An answer of the right form without a value, or with a value that a history cannot contain."""


def outcome(
    function: str, request: Request, answer: Any, node: str, own: Mapping[str, Function] = NO_OTHERS
) -> Outcome:
    """Return the outcome for the answer of a method.  Raises WrongAnswer for an answer that is impossible for its
    function.
    """
    known = own.get(function) or FUNCTIONS[function]
    given = Outcome(Type.OK, request.value, request.value2, request.payload, node=node)
    try:
        match known.answer:
            case "nothing":
                _no_failure(answer)
                return given
            case "whether":
                return given if _truth(answer) else replace(given, type=Type.FAIL, error=known.refusal)
            case "token" if answer is None:
                return replace(given, type=Type.FAIL, error=known.refusal)
            case "number or nil" if answer is None:
                return Outcome(Type.OK, node=node)
            case "offset" if answer is None:
                return given
            case "number" | "number or nil" | "token":
                return Outcome(Type.OK, _whole(answer), node=node)
            case "offset":
                found: Any = [request.value, _whole(answer)]
            case "numbers":
                found = _numbers(answer)
            case "text":
                found = _text(answer)
            case "balances":
                found = _balances(answer)
            case "anything":
                found = _json(answer)
            case "lists" | "registers":
                found = _steps(json.loads(request.payload or "[]"), answer, _READ[known.answer])
    except TypeError as problem:
        words = f": {problem}" if str(problem) else ""
        raise WrongAnswer(
            f"{function} returned {_shown(answer)}, where {_EXPECTED[known.answer]} is expected{words}",
            mistake=not isinstance(problem, _LostByTheSystem) and answer is not None,
        ) from problem
    return Outcome(Type.OK, payload=json.dumps(found), node=node)


def _whole(answer: object) -> int:
    """Convert a number of any library to Python's int.  Raises TypeError unless it is an integer of 64 bits."""
    if isinstance(answer, bool):
        raise TypeError
    try:
        number = operator.index(answer)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError from None
    if not -_LARGEST <= number <= _LARGEST:
        raise _LostByTheSystem("it has more than 64 bits")
    return number


def _truth(answer: object) -> bool:
    """Convert True or False, of Python or numpy; raise TypeError for other values."""
    if type(answer).__name__ not in ("bool", "bool_"):
        raise TypeError
    return bool(answer)


def _numbers(answer: object) -> list[int]:
    """Convert a collection of integers; raise TypeError for other values, such as text and dictionaries."""
    if isinstance(answer, str | bytes | bytearray | Mapping) or not isinstance(answer, Iterable):
        raise TypeError
    return [_element(each) for each in answer]


def _element(each: object) -> int:
    try:
        return _whole(each)
    except TypeError as problem:
        lost = each is None or isinstance(problem, _LostByTheSystem)
        raise (_LostByTheSystem if lost else TypeError)(f"{_shown(each)} is in it") from None


def _text(answer: object) -> str:
    if not isinstance(answer, str):
        raise TypeError
    return str(answer)


def _balances(answer: object) -> dict[str, int]:
    if not isinstance(answer, Mapping):
        raise TypeError
    return {str(account): _element(balance) for account, balance in answer.items()}


def _json(answer: object) -> Any:
    """Return the answer after a round trip through JSON, so that it equals the value that readers of the history parse
    (no tuples, for example).
    """
    try:
        return json.loads(json.dumps(answer, allow_nan=False))
    except (TypeError, ValueError) as problem:
        raise TypeError(str(problem)) from None


def _steps(given: Sequence[Sequence[Any]], answer: object, read: Callable[[object], Any]) -> list[list[Any]]:
    """Return the answered steps of a transaction.  Raises TypeError if they do not match the requested steps.

    read: converts the value of one read to its form in a history
    """
    if not isinstance(answer, list | tuple) or len(answer) != len(given):
        raise TypeError(f"there were {len(given)} steps")
    found: list[list[Any]] = []
    for number, (step, answered) in enumerate(zip(given, answer, strict=True), 1):
        if not isinstance(answered, list | tuple) or len(answered) != 3 or list(answered[:2]) != list(step[:2]):
            raise TypeError(f"step {number} was {list(step)}, and is {_shown(answered)}")
        value = read(answered[2]) if step[0] == "r" else _element(answered[2])
        if step[0] != "r" and value != step[2]:
            raise TypeError(f"step {number} was {list(step)}, and is {_shown(answered)}")
        found.append([step[0], step[1], value])
    return found


_READ: Mapping[Answer, Callable[[object], Any]] = {
    "lists": lambda answer: None if answer is None else _numbers(answer),
    "registers": lambda answer: None if answer is None else _element(answer),
}


def _no_failure(answer: object) -> None:
    """Raise TypeError for an answer that reports a failure or a pending result.

    Libraries answer a successful write in many ways, but never with False, an exception or a future.
    """
    if answer is False or isinstance(answer, BaseException):
        raise TypeError("raise an exception where a call fails")
    if any(hasattr(answer, name) for name in ("__await__", "add_done_callback", "add_callback")):
        raise TypeError("wait for the result of the call before the method returns")


def _shown(answer: object) -> str:
    """Return the answer as text, with its type, to distinguish 5 from "5"."""
    try:
        words = repr(answer)
    except Exception:  # noqa: BLE001 - the author's class may raise anything
        words = "…"
    return f"{words if len(words) <= 60 else words[:59] + '…'} ({type(answer).__name__})"
