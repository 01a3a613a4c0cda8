"""The browser of the tests of pages."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from report_in_browser import CHROMIUM, Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        sandbox = [] if os.geteuid() else ["--no-sandbox"]
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=[*sandbox, "--disable-gpu"])
        yield Browser(chromium)
        chromium.close()
