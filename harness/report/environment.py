"""The templates of all pages, and the data that they may contain.

Text of a run is hostile until proven otherwise.  There are three defences.  Jinja escapes every value.  The JSON block
contains `<`, `>` and `&` as \\u escapes only, so no value can close the block.  A content security policy allows
exactly one script, identified by its hash, and no requests.

JUnit XML, the results for a CI system, is rendered from a template as well.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from harness import plain_words as words

TEMPLATES = Path(__file__).parent / "templates"
STYLES = ("styles/base.css", "styles/report.css")
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MOST = 4000


@cache
def environment(own: Path = TEMPLATES) -> Environment:
    """Return the templates' environment: all values are escaped, and an unknown name is an error.

    own: folder of templates that take precedence over the templates of the report
    """
    env = Environment(
        loader=FileSystemLoader([own, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "seconds": words.seconds,
        "short": words.shorten,
        "listed": words.listed,
        "sentence": words.sentence,
        "looked_at": words.looked_at,
        "plain": lambda value: words.amount(value) if value is not None else "",
        "plural": words.plural,
        "capitalise": words.upper_first,
        "title_in_a_list": title_in_a_list,
        "xml": xml_text,
    }
    return env


def title_in_a_list(title: str) -> str:
    """Return the title of a checker for use within a list: lower case, unless it begins with an acronym."""
    return title[0].lower() + title[1:] if title.startswith("A ") else words.lower_first(title)


def xml_text(value: object) -> Markup:
    """Return text without characters that XML forbids; line breaks are escaped, because attributes would lose them."""
    return Markup(str(escape(_NOT_XML.sub("�", str(value)[:_MOST]))).replace("\n", "&#10;"))


def json_block(value: Any) -> Markup:
    """Return JSON that is safe inside a script element of type application/json, whatever strings it contains."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def script_hash(script: str) -> str:
    """Return the source expression of a content security policy that allows exactly this script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


@cache
def template_text(name: str) -> str:
    """Return a style sheet or script of the templates, unchanged."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class JunitCase:
    """A test case. outcome: "failure", "error" or "skipped", with kind, message and text; "" if the case passed."""

    classname: str
    name: str
    output: str
    seconds: float = 0.0
    outcome: str = ""
    kind: str = ""
    message: str = ""
    text: str = ""


def junit_xml(
    name: str, cases: Sequence[JunitCase], facts: Mapping[str, object] = {}, output: str = "", started: str = ""
) -> str:
    template = environment().get_template("junit.xml.j2")
    return template.render(name=name, cases=cases, facts=facts, output=output, started=started)
