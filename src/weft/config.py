"""Read the environment, once, into one frozen table of options.

No other module of Weft reads the environment. Every option is one row of OPTIONS; of a `WEFT_*` name that has no row
there is a warning, because a misspelt option that does nothing costs an afternoon.
"""

import difflib
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path

from weft.errors import UsageError

PREFIX = "WEFT_"


@dataclass(frozen=True)
class Config:
    """Every option of Weft, with the value it has when the environment says nothing."""

    target: str = "native"
    cache_dir: Path | None = None
    engine: str = "async"
    threads: int = 0
    codegen: str = "native"
    cuda_graphs: str = "off"
    kept_memory: int = 256
    programs_at_once: int = 2
    whole: str = "off"
    clock: str = "on"
    log: str = "quiet"


@dataclass(frozen=True)
class Option:
    """One environment variable: its name, the field it sets, how its text is read and what it is for."""

    name: str
    field: str
    read: Callable[[str], object]
    accepts: str
    sentence: str


def one_of(*choices: str) -> Callable[[str], str]:
    """Give a reader that accepts exactly these words."""

    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    return read


def count(text: str) -> int:
    """Read a whole number that is not negative."""
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def folder(text: str) -> Path:
    """Read the path of a folder, with `~` for the home folder; nothing is not the folder where the process is."""
    if not text.strip():
        raise ValueError(text)
    return Path(text).expanduser()


TARGETS = ("native", "avx512", "avx2", "generic")
ENGINES = ("async", "serial")
CODEGENS = ("native", "library")
SWITCHES = ("on", "off")
LOG_LEVELS = ("quiet", "info", "debug")

OPTIONS = (
    Option("WEFT_TARGET", "target", one_of(*TARGETS), " | ".join(TARGETS), "instructions that compiled code may use"),
    Option("WEFT_CACHE_DIR", "cache_dir", folder, "a folder", "where compiled code and measurements are kept"),
    Option("WEFT_ENGINE", "engine", one_of(*ENGINES), " | ".join(ENGINES), "serial runs each task at once, to debug"),
    Option("WEFT_THREADS", "threads", count, "a number, 0 for all cores", "how many cores Weft may use"),
    Option("WEFT_CODEGEN", "codegen", one_of(*CODEGENS), " | ".join(CODEGENS), "library runs PyTorch's operators only"),
    Option("WEFT_CUDA_GRAPHS", "cuda_graphs", one_of(*SWITCHES), " | ".join(SWITCHES), "whether CUDA graphs are used"),
    Option("WEFT_KEPT_MEMORY", "kept_memory", count, "megabytes", "freed memory that is kept for what comes next"),
    Option(
        "WEFT_PROGRAMS_AT_ONCE",
        "programs_at_once",
        count,
        "a number",
        "how many signatures of an object get a program at their first call; later ones once they have cost as much",
    ),
    Option(
        "WEFT_WHOLE",
        "whole",
        one_of(*SWITCHES),
        " | ".join(SWITCHES),
        "on: code that no program can be made of is an error, as with hybridize(..., whole=True)",
    ),
    Option(
        "WEFT_CLOCK",
        "clock",
        one_of(*SWITCHES),
        " | ".join(SWITCHES),
        "on: small programs are timed beside PyTorch's operators, and what is faster runs",
    ),
    Option("WEFT_LOG", "log", one_of(*LOG_LEVELS), " | ".join(LOG_LEVELS), "how much Weft says on standard error"),
)


def read_config(environment: Mapping[str, str]) -> Config:
    """Read every `WEFT_*` variable of an environment; a bad value is a UsageError, an unknown name a warning."""
    options = {option.name: option for option in OPTIONS}
    values: dict[str, object] = {}
    for name in sorted(environment):
        if not name.startswith(PREFIX):
            continue
        if name not in options:
            _warn(str(unknown_option(name)))  # once: the environment is read once
            continue
        option = options[name]
        if not environment[name].strip():
            continue  # as shells unset a variable for one command
        try:
            values[option.field] = option.read(environment[name])
        except ValueError:
            raise UsageError(
                f"{name} is {environment[name]!r}",
                why=f"it accepts {option.accepts}: {option.sentence}",
                fix=f"set one of these, or unset {name}",
            ) from None
    values.setdefault("cache_dir", default_cache_dir(environment))
    if sets_allocator(environment):
        values.setdefault("kept_memory", 0)
    return replace(Config(), **values)  # type: ignore[arg-type]  # each row's reader returns its field's type


def _warn(message: str) -> None:
    """Warn of the environment: no line of Python has set it, neither one of ours nor that which read it first."""
    warnings.warn_explicit(message, UserWarning, "environment", 1, module="weft.config")


def unknown_option(name: str) -> UsageError:
    """Describe a `WEFT_*` name that no row of OPTIONS has."""
    names = [option.name for option in OPTIONS]
    # All begin alike: what follows tells which one was meant.
    close = difflib.get_close_matches(name.removeprefix(PREFIX), [known.removeprefix(PREFIX) for known in names], n=1)
    return UsageError(
        f"{name} is set in the environment, but Weft has no such option",
        why="the options are " + ", ".join(names),
        fix=f"did you mean {PREFIX}{close[0]}?" if close else f"unset {name}",
    )


def default_cache_dir(environment: Mapping[str, str]) -> Path:
    """Give the folder for caches where WEFT_CACHE_DIR is not set: the desktop convention, then ~/.cache."""
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "weft"


def sets_allocator(environment: Mapping[str, str]) -> bool:
    """Tell whether the user has told the C library what to do with freed memory, which then stays as it is."""
    return any(name.startswith("MALLOC_") for name in environment) or "malloc" in environment.get("GLIBC_TUNABLES", "")


def asks_for_naive_engine() -> bool:
    """Tell whether MXNet's own switch says that each operator is to run at its call."""
    return os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine"


@contextmanager
def changed_environment(settings: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables of the environment, or take them away (None), until the block ends: for tests of users' code."""
    before = {name: os.environ.get(name) for name in settings}
    try:
        _set_environment(settings)
        yield
    finally:
        _set_environment(before)


def _set_environment(settings: Mapping[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


_lock = threading.Lock()  # Held only to read or swap _current: never while waiting for anything else.
_current: Config | None = None


def config() -> Config:
    """Give the options in force; the environment is read at the first call."""
    # Not read under the lock: a warning may run others' code.
    return _current if _current is not None else _kept(read_config(os.environ))


def _kept(read: Config) -> Config:
    global _current  # noqa: PLW0603  # the one cached value of this process
    with _lock:
        if _current is None:
            _current = read
        return _current


@contextmanager
def overrides(**changes: object) -> Iterator[Config]:
    """Change options, by field name, in every thread until the block ends: for tests."""
    global _current  # noqa: PLW0603  # the one cached value of this process
    known = {field.name for field in fields(Config)}
    if unknown := sorted(set(changes) - known):
        raise UsageError(f"no such option: {', '.join(unknown)}", why="the options are " + ", ".join(sorted(known)))
    before = config()
    after = replace(before, **changes)  # type: ignore[arg-type]  # tests give the field's own type
    with _lock:
        _current = after
    try:
        yield after
    finally:
        with _lock:
            _current = before
