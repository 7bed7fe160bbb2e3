"""Make one site of the pages of docs/: Sphinx reads Markdown by MyST, dresses it with Furo, and takes docstrings in."""

from __future__ import annotations

from pathlib import Path

import weft

project = "Weft"
author = "the Weft authors"
project_copyright = "2026, the Weft authors"
release = weft.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"Weft {release}"
html_copy_source = False
html_show_sourcelink = False
html_search_scorer = str(Path(__file__).parent / "search_order.js")

# Headings can be linked to; fences without a language are text, not Python.
myst_heading_anchors = 3
highlight_language = "text"
# What docstrings put between single backticks is code, as in Markdown.
default_role = "code"
autodoc_typehints = "none"
autodoc_member_order = "bysource"

# Indexes that GitHub shows as folders. Their pages are listed in them; Sphinx asks for a toctree too.
FOLDERS = ("decisions/README", "errors/README")
TOCTREE = "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"


def add_pages_of_folder(app: object, page: str, source: list[str]) -> None:
    """Give a folder's index the pages of the folder as children."""
    del app
    if page in FOLDERS:
        source[0] += TOCTREE


def mark_code_of_docstring(*given: object) -> None:
    """Name the indented lines of a docstring as the code that they are; to Sphinx they would be a quotation."""
    lines: list[str] = given[-1]  # type: ignore[assignment]  # what Sphinx calls it with: the lines come last
    for place in range(len(lines) - 1, 0, -1):
        if lines[place].startswith("    ") and not lines[place - 1]:
            lines[place:place] = [".. code-block:: python", ""]


def setup(app: object) -> None:
    """Take part in reading."""
    app.connect("autodoc-process-docstring", mark_code_of_docstring)  # type: ignore[attr-defined]  # as below
    app.connect("source-read", add_pages_of_folder)  # type: ignore[attr-defined]  # Sphinx is optional: no types here
