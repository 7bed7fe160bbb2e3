"""`weft bench`: a model beside its rivals."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from weft.api.program_writing import write_atomically
from weft.bench.comparison import compare, settings_text
from weft.bench.settings import Settings
from weft.cli.outcome import CLAIM_FAILED, OK, Outcome, as_json
from weft.cli.progress import Progress


def code(given: Namespace) -> str:
    """Give the Python call that does the same."""
    sizes = f", {given.input!r}" if given.input else ""
    settings = settings_text(_settings(given))
    imports = "from weft.bench.comparison import compare\n"
    if settings == "Settings()":
        return f"{imports}\nprint(compare({given.TARGET!r}{sizes}))"
    return (
        f"{imports}from weft.bench.settings import Settings\n\n"
        f"print(compare({given.TARGET!r}{sizes}, settings={settings}))"
    )


def run(given: Namespace) -> Outcome:
    """Measure, and write what is asked for."""
    with Progress() as progress:
        found = compare(given.TARGET, given.input, _settings(given), progress.say)
    data = found.as_dict()
    if given.export_json is not None:
        write_atomically(Path(given.export_json), [as_json("bench", data).encode("utf-8"), b"\n"])
    if given.export_markdown is not None:
        write_atomically(Path(given.export_markdown), [found.markdown().encode("utf-8")])
    return Outcome(found.document(), data, OK if found.agrees else CLAIM_FAILED)


def _settings(given: Namespace) -> Settings:
    return Settings(tuple(given.vs), given.threads or 0, given.warmup, given.runs)
