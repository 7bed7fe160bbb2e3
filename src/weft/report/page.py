"""A Document -> one self-contained HTML page: light and dark, readable on a phone, nothing from the network."""

from __future__ import annotations

from html import escape

from weft.document import Document
from weft.markup import fragment
from weft.picture.style import STYLE

PAGE = """<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --text: #1d2329; --page: #fbfaf7; --box: #f0eee8; --faint: #656b72;
  --good: #1a6d36; --bad: #b3261e; --line: #dcd8ce; }}
@media (prefers-color-scheme: dark) {{ :root {{ --text: #e4e3df; --page: #17191c; --box: #22262b; --faint: #9aa1a9;
  --good: #6fcf8b; --bad: #ff8a80; --line: #353a41; }} }}
body {{ margin: 0 auto; max-width: 46rem; padding: 1.5rem 1rem 4rem; color: var(--text); background: var(--page);
  font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: break-word; }}
h1 {{ font-size: 1.6rem; line-height: 1.25; }}
h2 {{ font-size: 1.15rem; margin: 2.2rem 0 .4rem; }}
pre {{ background: var(--box); padding: .8rem 1rem; border-radius: .4rem; overflow-x: auto;
  font: .85rem/1.45 ui-monospace, monospace; }}
.table {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: .92rem; }}
td, th {{ padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top; border-top: 1px solid var(--line); }}
th {{ color: var(--faint); font-weight: 500; border-top: 0; }}
.right {{ text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }}
:lang(zh) td:not(:last-child) {{ white-space: nowrap; }}
.faint {{ color: var(--faint); }} .good {{ color: var(--good); }} .bad {{ color: var(--bad); }}
.strong {{ font-weight: 600; }}
@media (max-width: 32rem) {{ table {{ font-size: .8rem; }} td, th {{ padding-right: .55rem; }} }}
{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
</body>
</html>
"""


def page(title: str, document: Document, language: str = "en") -> str:
    """Make a page of a document."""
    return PAGE.format(language=escape(language), title=escape(title), style=STYLE, body=fragment(document))
