"""A page -> what a headless Chromium makes of it: its console, and how wide it gets."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import escape
from pathlib import Path

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr",
)  # fmt: skip
# A window has a least width, a frame has none. It tells how wide the page in it gets.
FRAME = """<!doctype html><title>not loaded</title><body><iframe width="{width}" height="900" style="border:0"
srcdoc="{page}" onload="const inside = this.contentDocument.documentElement;
document.title = `${{inside.scrollWidth}} of ${{inside.clientWidth}}`"></iframe></body>"""


def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium is installed")
    return found


def look(words: list[str], page: Path, folder: Path, width: int) -> subprocess.CompletedProcess[str]:
    """Open a page at a width, in a profile of its own."""
    profile = folder / f"profile-{width}-{page.stem}"
    line = [browser(), *OPTIONS, f"--user-data-dir={profile}", f"--window-size={width},900", *words, page.as_uri()]
    return subprocess.run(line, capture_output=True, text=True, check=True, timeout=50)


def console(page: Path, folder: Path, width: int) -> list[str]:
    """Give the lines of the console, and write a picture beside the page."""
    found = look([f"--screenshot={page.with_suffix('')}-{width}.png"], page, folder, width)
    return [line for line in found.stderr.splitlines() if "CONSOLE" in line]


def widths(page: Path, folder: Path, width: int) -> str:
    """Give `scroll width of window width`."""
    frame = folder / f"frame-{width}-{page.name}"
    frame.write_text(FRAME.format(width=width, page=escape(page.read_text(encoding="utf-8"))), encoding="utf-8")
    title = re.search(r"<title>(.*?)</title>", look(["--dump-dom"], frame, folder, 1300).stdout)
    assert title is not None
    return title[1]
