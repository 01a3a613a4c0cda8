"""The page of judged files: every kind of witness drawn, in a real browser, at any width and in both themes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_in_browser import CHECKS, UNFOLD, WIDTHS, Browser, no_chromium

from checkers.base.checker import Budget
from checkers.base.history import Event, Type
from checkers.base.verdict import Validity, Verdict, Witness
from checkers.by_hand import Ask, judge_as
from harness.report.check_page import FINDINGS_MOST, render_check
from harness.report.divergence import KEY_SHOWN_MOST, Cycle, cycle_of
from harness.report.judged_file import JudgedFile
from harness.story.story import Story
from tests.support.records_of_runs import witness_in

NASTY = "</script><img src=x onerror=alert(1)>\"'`\u2028\u202e ünïcode " + "x" * 400

Line = tuple[int, Type, str, Any]
INVOKE, OK, FAIL = Type.INVOKE, Type.OK, Type.FAIL


def history(*lines: Line) -> list[Event]:
    events = []
    for index, (process, kind, f, given) in enumerate(lines):
        plain = given is None or isinstance(given, int)
        payload = None if plain else json.dumps(given)
        events.append(Event(index, 0, process, kind, f, None, given if plain else None, None, payload))
    return events


def skew(keys: list[Any]) -> list[Event]:
    """Transactions that each write one key and miss the write of the next: a cycle of rw edges through all of them."""
    lines: list[Line] = []
    for n in range(len(keys)):
        lines.append((n, INVOKE, "txn", [["append", keys[n], 1], ["r", keys[n - 1], None]]))
    for n in range(len(keys)):
        lines.append((n, OK, "txn", [["append", keys[n], 1], ["r", keys[n - 1], []]]))
    lines.append((99, INVOKE, "txn", [["r", key, None] for key in keys]))
    lines.append((99, OK, "txn", [["r", key, [1]] for key in keys]))
    return history(*lines)


def cases(nasty: str) -> dict[str, tuple[str, list[Event]]]:
    return {
        "stale": (
            "register",
            history((0, INVOKE, "write", 1), (0, OK, "write", 1), (1, INVOKE, "write", 2), (1, OK, "write", 2),
                    (2, INVOKE, "read", None), (2, OK, "read", 1)),
        ),
        "queue": (
            "queue",
            history((0, INVOKE, "enqueue", nasty), (0, OK, "enqueue", nasty), (1, INVOKE, "enqueue", 2),
                    (1, OK, "enqueue", 2), (2, INVOKE, "dequeue", None), (3, INVOKE, "enqueue", 3),
                    (2, OK, "dequeue", 2)),
        ),
        "mutex": (
            "mutex",
            history((0, INVOKE, "acquire", None), (0, OK, "acquire", None), (1, INVOKE, "acquire", None),
                    (1, OK, "acquire", None), (0, INVOKE, "release", None), (0, OK, "release", None)),
        ),
        "set": ("set", history((0, INVOKE, "add", nasty), (0, OK, "add", nasty), (1, INVOKE, "read", None),
                               (1, OK, "read", []))),
        "two reads of a set": (
            "set",
            history((0, INVOKE, "add", 1), (0, OK, "add", 1), (1, INVOKE, "add", nasty), (2, INVOKE, "read", None),
                    (2, OK, "read", [1, nasty]), (1, OK, "add", nasty), (0, INVOKE, "add", 3), (0, OK, "add", 3),
                    (2, INVOKE, "read", None), (2, OK, "read", [1, 3])),
        ),
        "two in a cycle": ("list-append", skew(["x", "y"])),
        "six in a cycle": ("list-append", skew([nasty, "b", "account-number-7", 4, "e", "f"])),
        "aborted": (
            "list-append",
            history((0, INVOKE, "txn", [["append", "x", 1]]), (0, FAIL, "txn", [["append", "x", 1]]),
                    (1, INVOKE, "txn", [["r", "x", None]]), (1, OK, "txn", [["r", "x", [1]]])),
        ),
        "kafka": (
            "kafka",
            history((0, INVOKE, "send", [["send", nasty, 1]]), (0, OK, "send", [["send", nasty, [5, 1]]]),
                    (0, INVOKE, "send", [["send", nasty, 2]]), (0, OK, "send", [["send", nasty, [6, 2]]]),
                    (0, INVOKE, "send", [["send", nasty, 3]]), (0, OK, "send", [["send", nasty, [7, 3]]]),
                    (1, INVOKE, "poll", [["poll"]]), (1, OK, "poll", [["poll", {nasty: [[5, 1], [7, 3]]}]])),
        ),
    }  # fmt: skip


def judged(nasty: str = "v") -> list[JudgedFile]:
    out = []
    for name, (model, events) in cases(nasty).items():
        verdict = judge_as(events, Ask(model), Budget())
        assert verdict.validity is Validity.INVALID, name
        out.append(JudgedFile(f"{name}.edn", verdict))
    row = {"table": "something new", "who": nasty, "how_much": 4}
    unknown_kind = Witness(
        "a kind without a drawing", nasty, rows=(row,), facts={"held_by": ["n1", "n2"], "why": [nasty]}
    )
    out.append(JudgedFile("new kind", Verdict(Validity.INVALID, witnesses=(unknown_kind,))))
    out.append(JudgedFile("cut.edn", Verdict(Validity.UNKNOWN, reason="line 4"), "line 4: '{' is never closed"))
    out.append(JudgedFile("right.edn", Verdict(Validity.VALID, {"operations": 4})))
    return out


def test_every_kind_of_witness_is_on_the_page(tmp_path: Path) -> None:
    files = judged()
    html = render_check(files, "register", tmp_path / "page.html").read_text()
    witnesses = sum(len(each.verdict.witnesses) for each in files)
    assert html.count('class="finding"') == witnesses
    assert html.count('class="cyclering"') == 2
    assert html.count('class="witness"') == 3 * (5 + 2), "three widths each; of Kafka two anomalies"
    shown = "Log of v|without a drawing|Something new|how much|n1 and n2|rw account-n…|back to where it began"
    shown += "|v acknowledged before the read began|An answer of &#34;v&#34;"
    assert [part for part in shown.split("|") if part not in html] == []


def test_of_very_many_violations_the_first_of_each_file_is_drawn(tmp_path: Path) -> None:
    bad = judged()[0].verdict.witnesses[0]
    many = [JudgedFile(f"{n}", Verdict(Validity.INVALID, witnesses=(bad,) * 3)) for n in range(FINDINGS_MOST)]
    html = render_check(many, "register", tmp_path / "page.html").read_text()
    assert html.count('class="finding"') == FINDINGS_MOST
    assert f"Of {2 * FINDINGS_MOST} more violations" in html


def cycle_in(facts: dict[str, Any]) -> Cycle | None:
    return cycle_of(Story(witness_in({"facts": facts})))


def test_an_edge_says_its_key_and_a_cycle_that_is_too_long_is_no_ring() -> None:
    def edge(n: int, count: int) -> dict[str, Any]:
        return {"from": f"T{n}", "to": f"T{n % count + 1}", "edge": "rw", "key": "k" * 40, "why": "because"}

    small = cycle_in({"cycle": [edge(n, 3) for n in (1, 2, 3)], "length": 3})
    assert small is not None and small.ring is not None
    assert [arrow.words for arrow in small.ring.arrows] == ["rw " + "k" * (KEY_SHOWN_MOST - 1) + "…"] * 3
    assert all(0 <= arrow.x <= small.ring.width for arrow in small.ring.arrows)
    cut_off = cycle_in({"cycle": [edge(n, 3) for n in (1, 2, 3)], "length": 30})
    assert cut_off is not None and cut_off.ring is None and cut_off.left_out == 27
    assert cycle_in({"why": ["no cycle"]}) is None


def test_edges_that_are_not_one_cycle_are_listed_and_not_drawn_as_a_ring() -> None:
    ends = [("T1", "T2"), ("T2", "T3"), ("T3", "T2")]
    broken = cycle_in({"cycle": [{"from": a, "to": b, "edge": "ww"} for a, b in ends], "length": 3})
    assert broken is not None and broken.ring is None and len(broken.edges) == 3


@pytest.mark.parametrize("count", (2, 3, 12))
def test_a_ring_begins_at_the_top_and_goes_clockwise(count: int) -> None:
    edges = [{"from": f"T{n}", "to": f"T{(n + 1) % count}", "edge": "ww"} for n in range(count)]
    cycle = cycle_in({"cycle": edges, "length": count})
    assert cycle is not None and cycle.ring is not None
    nodes = cycle.ring.nodes
    assert [node.name for node in nodes] == [f"T{n}" for n in range(count)]
    if count == 2:
        assert nodes[0].x < nodes[1].x and nodes[0].y == nodes[1].y
    else:
        assert nodes[0].y == min(node.y for node in nodes)
        assert nodes[1].x > cycle.ring.width / 2 > nodes[-1].x


@pytest.mark.browser
@no_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overflows_and_hostile_values_do_nothing(browser: Browser, tmp_path: Path, scheme: str) -> None:
    page_path = render_check(judged(NASTY), "register", tmp_path / "page.html")
    for width in WIDTHS:
        visit = browser.visit(page_path, width=width, scheme=scheme)
        visit.page.evaluate(UNFOLD)
        assert visit.width_beyond() == 0
        assert visit.page.evaluate(f"{CHECKS}.outside()") == [], f"at {width} pixels"
        assert visit.page.evaluate(f"{CHECKS}.faint()") == [], f"too little contrast, {scheme}"
        assert visit.page.locator("img").count() == 0
        assert visit.complaints == []
        visit.page.context.close()


@pytest.mark.browser
@no_chromium
def test_the_legal_order_can_be_stepped_through_without_a_run(browser: Browser, tmp_path: Path) -> None:
    step = browser.visit(render_check(judged(), "register", tmp_path / "page.html")).page.locator("#finding-1 .step")
    assert "No legal place is left" in step.inner_text()
    step.locator(".back").click()
    assert "No legal place is left" not in step.inner_text()
