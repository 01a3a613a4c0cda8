"""The functions that clients serve: what each is given, what it answers, and what becomes of both in a history.

A workload names the functions it invokes, a client has some of them, and a subject runs every workload whose functions
its client has.  The names are distinct where the meaning is: a set's `members` and a register's `read` both stand in a
history as `read`, but a client could not distinguish them by that.

A client in the plain form has one method per function: `arguments` turns a request into what the method is given, and
`outcome` turns what it returned into an outcome.

Runs on client nodes; needs only the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from checkers.base.history import Type
from system_under_test.client import Outcome, Request

Given = Literal["nothing", "perhaps key", "key", "key value", "key value value2", "key payload", "payload", "fields"]
"""What of a request a method is given, in this order.  fields: the elements of a payload that is a list."""
Answer = Literal["nothing", "number", "number or nil", "whether", "token", "offset", "numbers", "text", "payload"]


@dataclass(frozen=True, slots=True)
class Function:
    """answer: what a method returns.  observes: it changes nothing, so without an answer it certainly did not happen.
    refusal: why an operation failed that answered False, or None for a token."""

    words: str
    given: Given
    answer: Answer = "nothing"
    observes: bool = False
    refusal: str = ""


FUNCTIONS: Mapping[str, Function] = {
    "create": Function("make an object; it is no part of the history that is judged", "perhaps key"),
    "read": Function("the value of a register, None where it holds nothing", "key", "number or nil", observes=True),
    "write": Function("set a register to a value", "key value"),
    "cas": Function(
        "set a register that holds the first value to the second; whether it held the first",
        "key value value2",
        "whether",
        refusal="mismatch",
    ),
    "add": Function("put an element into a set", "key value"),
    "members": Function("all elements of a set", "key", "numbers", observes=True),
    "increment": Function("add an amount to a counter that begins at 0", "key value"),
    "total": Function("the sum that a counter holds", "key", "number", observes=True),
    "enqueue": Function("put a value at the end of a queue; returns once it is confirmed", "key value"),
    "dequeue": Function("remove and acknowledge the oldest value, None where there is none", "key", "number or nil"),
    "drain": Function("remove all that is left in a queue, the oldest first", "key", "numbers"),
    "append": Function(
        "put a value at the end of a log; its offset, None where it is not known", "key value", "offset"
    ),
    "entries": Function("the whole log from its beginning", "key", "numbers", observes=True),
    "put": Function("set the string under a key", "key payload"),
    "append_text": Function("put a string behind the one under a key", "key payload"),
    "get": Function('the string under a key, "" where there is none', "key", "text", observes=True),
    "transact_lists": Function(
        'run ["append", key, value] and ["r", key, None] as one transaction; the steps, with the list in each read',
        "payload",
        "payload",
    ),
    "transact_registers": Function(
        'run ["w", key, value] and ["r", key, None] as one transaction; the steps, with the value in each read',
        "payload",
        "payload",
    ),
    "transfer": Function(
        "move an amount from one account to another; whether the source had enough",
        "fields",
        "whether",
        refusal="not enough",
    ),
    "open_account": Function("make an account that holds this balance; it may come twice", "fields"),
    "balances": Function("account -> balance, of all accounts at one moment", "nothing", "payload", observes=True),
    "acquire": Function("take a lock; whether it was free", "key", "whether", refusal="not free"),
    "release": Function("give a lock back", "key"),
    "acquire_token": Function(
        "take a lock; its fencing token, a number that only grows, or None if it was not free",
        "key",
        "token",
        refusal="not free",
    ),
    "fenced_write": Function(
        "write with a fencing token to what the lock guards; False if a greater token wrote before",
        "key value",
        "whether",
        refusal="fenced",
    ),
    "generate": Function("an id that was never given before", "key", "number"),
}


def observes(function: str) -> bool:
    """Whether a function changes nothing; False for an unknown one."""
    return function in FUNCTIONS and FUNCTIONS[function].observes


def arguments(function: str, request: Request) -> tuple[Any, ...]:
    """What the method is given.  Raises ValueError where the request lacks it, KeyError for an unknown function."""
    given = FUNCTIONS[function].given
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


def outcome(function: str, request: Request, answer: Any, node: str) -> Outcome:
    """The outcome of a method that returned.  Raises ValueError for an answer that the function cannot have."""
    known = FUNCTIONS[function]
    own = Outcome(Type.OK, request.value, request.value2, request.payload, node=node)
    refused = Outcome(Type.FAIL, request.value, request.value2, request.payload, known.refusal, node)
    match known.answer:
        case "nothing":
            return own
        case "whether" if isinstance(answer, bool):
            return own if answer else refused
        case "token" if answer is None:
            return refused
        case "number or nil" if answer is None:
            return Outcome(Type.OK, node=node)
        case "offset" if answer is None:
            return own
        case "offset" if _whole(answer):
            return Outcome(Type.OK, payload=json.dumps([request.value, answer]), node=node)
        case "number" | "number or nil" | "token" if _whole(answer):
            return Outcome(Type.OK, answer, node=node)
        case "numbers" if all(map(_whole, answer)):
            return Outcome(Type.OK, payload=json.dumps(list(answer)), node=node)
        case "text" if isinstance(answer, str):
            return Outcome(Type.OK, payload=json.dumps(answer), node=node)
        case "payload" if isinstance(answer, list | dict):
            return Outcome(Type.OK, payload=json.dumps(answer), node=node)
    raise ValueError(f"{function} answered {answer!r:.60}, where {known.answer} was expected")


def _whole(answer: object) -> bool:
    return isinstance(answer, int) and not isinstance(answer, bool)
