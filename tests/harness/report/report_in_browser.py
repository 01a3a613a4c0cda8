"""Pages in a real browser, and what they did there that they should not have done."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S

CHROMIUM = shutil.which("chromium")
CHECKS = (Path(__file__).parent / "report_page_checks.js").read_text().strip()
WIDTHS = (390, 820, 1400)
UNFOLD = "document.querySelectorAll('details').forEach(d => d.open = true)"

no_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")


@dataclass
class Visit:
    """One page, and everything it did that it should not have done."""

    page: Any
    complaints: list[str] = field(default_factory=list)

    def width_beyond(self) -> int:
        """Pixels by which the page is wider than its window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def until(page: Any, condition: str, limit_s: float = PATIENCE_S) -> None:
    """Wait for a condition in the page.  (Playwright's own way evaluates strings, which the page's policy forbids.)"""
    ends = time.monotonic() + limit_s
    while not page.evaluate(condition):
        assert time.monotonic() < ends, f"never came true: {condition}"
        page.wait_for_timeout(30)


def settle(page: Any) -> None:
    """Wait until the page has painted what was ordered and has written its address.

    It writes the address 120 ms after the last change, by a timer.  A later timer of the page fires after that one,
    however slow the machine is.
    """
    page.evaluate(
        "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 200))))"
    )


class Browser:
    def __init__(self, browser: Any) -> None:
        self._browser = browser

    def visit(self, path: Path, fragment: str = "", *, width: int = 1400, scheme: str = "light", **more: Any) -> Visit:
        context = self._browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
        context.set_default_timeout(1000 * PATIENCE_S)
        visit = Visit(context.new_page())
        page, complaints = visit.page, visit.complaints
        loud, local = ("error", "warning"), ("file:", "data:")
        page.on("console", lambda m: complaints.extend([f"console: {m.text}"] if m.type in loud else []))
        page.on("pageerror", lambda e: complaints.append(f"error: {e}"))
        page.on("dialog", lambda d: (complaints.append(f"dialog: {d.message}"), d.dismiss()))
        page.on("request", lambda r: complaints.extend([] if r.url[:5] in local else [f"request: {r.url[:90]}"]))
        page.goto(f"{path.as_uri()}{fragment}")
        if more.get("java_script_enabled", True):
            until(page, "document.documentElement.dataset.ready === 'yes' || !document.getElementById('data')")
        return visit
