"""Make the tour, a table of stops each run here, and count the claims that hold: `weft tour`."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from weft.console.outcome import CLAIM_FAILED, OK, Outcome
from weft.console.terminal import Progress, style_of
from weft.console.tour.stop import Claim, Texts, read_texts
from weft.console.tour.visit import Visit, stops_here, visit_alone
from weft.document.blocks import (
    Block,
    Code,
    Document,
    Heading,
    Paragraph,
    Picture,
    StyledText,
    Table,
    Tone,
    bar,
    columns_of,
)
from weft.document.charts import Bar, bars, picture
from weft.document.html import page
from weft.errors import UsageError
from weft.files import write_atomically

LANGUAGES = ("en", "zh")
DIALECTS = ("torch", "mx")
BAR = 40
BEYOND_ASCII = {"zh"}


@dataclass(frozen=True, slots=True)
class Tour:
    """All stops that were made, in the words of a language."""

    visits: tuple[Visit, ...]
    texts: Texts
    dialect: str = "torch"

    @property
    def title(self) -> str:
        """Name the tour."""
        return self.texts.words["title"]

    @property
    def language(self) -> str:
        """Give the language it is in."""
        return self.texts.language

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Give the claims of all stops."""
        return tuple(claim for visit in self.visits for claim in visit.claims)

    @property
    def holds(self) -> bool:
        """Tell whether every claim holds here."""
        return all(claim.holds for claim in self.claims)

    def summary(self) -> str:
        """Count: N stops, M claims, K hold."""
        holding = sum(claim.holds for claim in self.claims)
        counts = {"stops": len(self.visits), "claims": len(self.claims), "holds": holding}
        told = {name: self.texts.counted(name, count) for name, count in counts.items()}
        return self.texts.words["end"].format(**told)

    def as_dict(self) -> dict[str, Any]:
        """Give it as data."""
        stops = [{**asdict(visit), "title": self.texts.stops[visit.name]["title"]} for visit in self.visits]
        for stop in stops:
            del stop["picture"]  # it is to be looked at
        return {"stops": stops, "claims": len(self.claims), "hold": sum(claim.holds for claim in self.claims)}

    def document(self) -> Document:
        """Give it to read."""
        blocks: list[Block] = [Paragraph(self.texts.words["beginning"])]
        for number, visit in enumerate(self.visits, 1):
            told = self.texts.stops[visit.name]
            blocks += [Heading(f"{number}. {told['title']}"), Paragraph(told["text"]), Code(visit.code)]
            if visit.output:
                blocks += [Paragraph(self.texts.words["output"], "faint"), Code(visit.output)]
            blocks += [_captioned(visit.picture, told.get("picture", ""))] if visit.picture is not None else []
            blocks += [self._bars(claim.times) for claim in visit.claims if claim.times is not None]
            blocks.append(Table((), tuple(row for claim in visit.claims for row in self._rows(claim))))
        tone: Tone = "good" if self.holds else "bad"
        return Document((*blocks, *self._failed(), Paragraph(self.summary(), tone)))

    def __str__(self) -> str:
        return str(self.document())

    def _failed(self) -> Sequence[Block]:
        """List again what does not hold: it lies screens above, and a time may be the fault of other programs."""
        if self.holds:
            return ()
        rows = tuple(
            (StyledText("✗", "bad"), f"{number}.", self.texts.claims[claim.name])
            for number, visit in enumerate(self.visits, 1)
            for claim in visit.claims
            if not claim.holds
        )
        again = " ".join(f"--stop {visit.name}" for visit in self.visits if not visit.holds)
        dialect = "" if self.dialect == "torch" else f"--dialect {self.dialect} "
        told = self.texts.words["again"].format(command=f"weft tour {dialect}{again}")
        return Heading(self.texts.words["failed"]), Table((), rows), Paragraph(told)

    def _bars(self, times: tuple[float, float]) -> Picture:
        """Draw two times under each other."""
        names = self.texts.words["before"], self.texts.words["after"]
        longest, wide = max(times), max(map(columns_of, names))
        told = [f"{1000 * seconds:.1f} ms" for seconds in times]
        drawn = [
            Bar(name, seconds, seconds, seconds, text, marked=place == 1)
            for place, (name, seconds, text) in enumerate(zip(names, times, told, strict=True))
        ]
        lines = (
            f"{name}{' ' * (wide - columns_of(name))} {bar(seconds / longest, BAR)} {text}"
            for name, seconds, text in zip(names, times, told, strict=True)
        )
        return Picture(bars(drawn), "\n".join(lines))

    def _rows(self, claim: Claim) -> Sequence[tuple[str | StyledText, ...]]:
        words = self.texts.words
        mark = StyledText("✓", "good") if claim.holds else StyledText("✗", "bad")
        told = self.texts.claims[claim.name]
        return ((mark, words["claim"], told), ("", words["here"], claim.here), ("", words["chapter"], claim.chapter))


def tour(
    language: str = "en",
    only: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
    *,
    dialect: str = "torch",
) -> Tour:
    """Make the tour, or some of its stops, each in a process of its own; `say` is told which one is next."""
    if language not in LANGUAGES:
        raise UsageError(f"there is no tour in {language!r}", why="the languages are " + ", ".join(LANGUAGES))
    if dialect not in DIALECTS:
        raise UsageError(f"there is no tour of {dialect!r}", why="the dialects are " + ", ".join(DIALECTS))
    stops = stops_here(dialect)
    if unknown := sorted(set(only) - {stop.name for stop in stops}):
        names = [stop.name for stop in stops]
        close = get_close_matches(unknown[0], names, n=1)
        raise UsageError(
            f"there is no stop {unknown[0]!r}",
            why="the stops are " + ", ".join(names),
            fix=f"did you mean {close[0]}?" if close else None,
        )
    chosen = [stop for stop in stops if not only or stop.name in only]
    visits = []
    for number, stop in enumerate(chosen, 1):
        say(f"stop {number} of {len(chosen)}: {stop.name}")
        visits.append(visit_alone(stop.name))
    return Tour(tuple(visits), read_texts(language), dialect)


def _captioned(drawn: Picture, caption: str) -> Picture:
    """Write under a picture of a page what it shows."""
    return Picture(picture(drawn.html, caption), drawn.text)


def tour_call(given: Namespace) -> str:
    """Give the Python call that does the same."""
    words = [f"{given.lang!r}"] if given.lang != "en" else []
    words += [f"only={given.stop!r}"] if given.stop else []
    words += [f"dialect={given.dialect!r}"] if given.dialect != "torch" else []
    call = f"tour({', '.join(words)})"
    if given.html is None:
        return f"from weft.console.tour.tour import tour\n\nprint({call})"
    return (
        "from pathlib import Path\n\nfrom weft.document.html import page\nfrom weft.console.tour.tour import tour\n\n"
        f"found = {call}\n"
        "print(found)\n"
        f"Path({given.html!r}).write_text(page(found.title, found.document(), found.language), encoding='utf-8')"
    )


def tour_run(given: Namespace, progress: Progress) -> Outcome:
    """Make the tour, and write the page where it is asked for."""
    _check_readable(given)
    found = tour(given.lang, given.stop, progress.say, dialect=given.dialect)
    if given.html is not None:
        text = page(found.title, found.document(), found.language)
        write_atomically(Path(given.html), [text.encode("utf-8")])
    return Outcome(found.document(), found.as_dict(), OK if found.holds else CLAIM_FAILED)


def _check_readable(given: Namespace) -> None:
    """Refuse a language that standard output has no characters for: nobody reads escapes. JSON is for programs."""
    if given.lang in BEYOND_ASCII and given.ascii and not given.json:
        unable = style_of(ascii_only=False).ascii
        raise UsageError(
            f"--lang {given.lang} cannot be written in ASCII",
            why=f"standard output is in {sys.stdout.encoding}" if unable else "--ascii asks for no other characters",
            fix="PYTHONIOENCODING=utf-8, or --lang en" if unable else "leave --ascii out, or choose --lang en",
        )
