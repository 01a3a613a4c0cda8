"""Draws the pictures of a report for these pages, from a run that the tests keep.

    python docs/pictures.py

Writes `report.png` and `witness.png`.  Needs Debian's chromium and the packages of the tests.  Run it by hand when the
page has changed; `reading-a-report.md` quotes the same run.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from harness.judge.judge_run import judge

DOCS = Path(__file__).resolve().parent
RUN = DOCS.parent / "tests/data/kraft-stale-read.tar.xz"
WIDTH = 1280


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        os.chdir(scratch)  # commands on the page name the run as its reader would
        folder = Path("results", "test-partition", "20261122T054854Z-1-stale-read")
        folder.mkdir(parents=True)
        with tarfile.open(RUN) as archive:
            archive.extractall(folder, filter="data")
        judge(folder, None, print)
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        page.goto((folder / "report.html").resolve().as_uri())
        page.add_style_tag(content="nav { position: static !important; }")
        page.wait_for_timeout(500)
        head_and_timeline(page)
        page.locator("#finding-1").screenshot(path=DOCS / "witness.png")
        browser.close()


def head_and_timeline(page: Page) -> None:
    box = page.locator("#timeline").bounding_box()
    assert box is not None
    clip = {"x": 0.0, "y": 0.0, "width": float(WIDTH), "height": box["y"] + box["height"]}
    page.screenshot(path=DOCS / "report.png", full_page=True, clip=clip)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
