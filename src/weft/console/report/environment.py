"""Report versions and settings, to paste into an issue: `weft env`."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from argparse import Namespace
from dataclasses import dataclass
from typing import Any

import weft
from weft.config import OPTIONS, Config, config
from weft.console.outcome import Outcome
from weft.console.terminal import Progress
from weft.document.blocks import Document, Heading, facts
from weft.target import Target, host_target

PACKAGES = ("torch", "llvmlite", "numpy", "safetensors", "rich", "onnxruntime", "openvino", "nvidia-ml-py")
NOT_INSTALLED = "not installed"


@dataclass(frozen=True, slots=True)
class Environment:
    """Versions of what Weft rests on, the processor as Weft sees it, and options that differ from their defaults."""

    weft: str
    python: str
    system: str
    packages: dict[str, str | None]
    target: Target
    options: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Give it as data."""
        return dataclasses.asdict(self)

    def document(self) -> Document:
        """Give it to read."""
        packages = [(name, version or NOT_INSTALLED) for name, version in self.packages.items()]
        rows = [("weft", self.weft), ("python", self.python), ("system", self.system), *packages]
        options = list(self.options.items()) or [("options", "none is set")]
        return Document((facts(rows), Heading("processor"), facts(processor_facts(self.target)), facts(options)))

    def __str__(self) -> str:
        return str(self.document())


def environment() -> Environment:
    """Look at this installation and this machine; nothing of it names a person or a place."""
    return Environment(
        weft.__version__,
        f"{platform.python_version()} {platform.python_implementation()}",
        f"{platform.system()} {platform.release()} {platform.machine()}",
        {name: version_of(name) for name in PACKAGES},
        host_target(),
        _changed_options(config()),
    )


def version_of(package: str) -> str | None:
    """Give the version of a package; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor_facts(target: Target) -> list[tuple[str, str]]:
    """Say what Weft knows of a processor."""
    caches = (target.l1_bytes, target.l2_bytes, target.l3_bytes)
    return [
        ("cpu", f"{target.cpu} ({target.name})"),
        ("vectors", f"{target.vector_bytes * 8} bits"),
        ("cores", str(target.cores)),
        ("caches", " / ".join(bytes_text(size) for size in caches)),
    ]


def bytes_text(size: float) -> str:
    """Say a number of bytes as people do."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _changed_options(now: Config) -> dict[str, str]:
    usual = Config()
    fields = {option.name: option.field for option in OPTIONS if option.field != "cache_dir"}
    return {
        name: str(getattr(now, field)) for name, field in fields.items() if getattr(now, field) != getattr(usual, field)
    }


def env_call(given: Namespace) -> str:
    """Give the Python call that does the same."""
    del given
    return "from weft.console.report.environment import environment\n\nprint(environment())"


def env_run(given: Namespace, progress: Progress) -> Outcome:
    """Look at this installation."""
    del given
    progress.stage("looking at this installation")
    found = environment()
    return Outcome(found.document(), found.as_dict())
