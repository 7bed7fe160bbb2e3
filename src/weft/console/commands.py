"""List the commands: what each is called, takes and is good for, and the module that runs it.

The module of `weft env` has two functions: `env_call(given)` gives the Python call that does the same, and
`env_run(given, progress)` an Outcome.
It is imported only when its command is called, so that `weft --help` does not wait for PyTorch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

STAGES = ("graph", "plan", "llvm", "asm", "draw")
RIVALS = ("eager", "compile", "onnxruntime", "openvino", "hybrid", "step", "lazy")

LANGUAGES = ("en", "zh")
DIALECTS = ("torch", "mx")
CHECKPOINT_ACTIONS = ("inspect", "verify", "diff", "convert", "clean")


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: an option if its name begins with dashes, else a value by its place.

    `many` may be given several times; one of `choices` is asked for where there are any; `shows` is the name of its
    value in help, None for a switch; `writes` says that the value is a file that will be written.
    """

    name: str
    sentence: str
    shows: str | None = None
    default: Any = None
    read: Callable[[str], Any] = str
    choices: tuple[str, ...] = ()
    many: bool = False
    optional: bool = False
    writes: bool = False

    @property
    def by_place(self) -> bool:
        """Tell whether it is a value without a name."""
        return not self.name.startswith("-")

    @property
    def needed(self) -> bool:
        """Tell whether the command cannot do without it."""
        return self.by_place and not self.optional

    @property
    def field(self) -> str:
        """Give the name under which what was given is found."""
        return self.name.removeprefix("--").replace("-", "_")


@dataclass(frozen=True, slots=True)
class Command:
    """One command; `interrupted` is what to do after Ctrl-C."""

    name: str
    sentence: str
    home: str
    examples: tuple[tuple[str, str], ...]
    arguments: tuple[Argument, ...] = ()
    interrupted: str = "nothing was changed: start it again when you like"


def whole(text: str) -> int:
    """Read a whole number that is at least one."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("a whole number, at least 1")
    return int(text)


def above_zero(text: str) -> float:
    """Read a number above zero."""
    if not re.fullmatch(r"\d*\.?\d+", text, re.ASCII) or float(text) <= 0:
        raise ValueError("a number above 0")
    return float(text)


TARGET = Argument(
    "TARGET",
    "file.py:name of a module, a class of modules without arguments, or a function; or MXNet's net-symbol.json",
)
INPUT = Argument(
    "--input",
    "sizes of an argument, in order: 1,3,224,224, or 8,128:i64 for another element type; else the file's"
    " example_inputs",
    shows="SIZES",
    many=True,
)
EVERYWHERE = (
    Argument("--json", 'give the result as JSON with "schema": 1'),
    Argument("--ascii", "write nothing but ASCII"),
    Argument("--show-code", "print the Python call that does the same, and do nothing else"),
    Argument("--help", "say this; -h too"),
)

COMMANDS = (
    Command(
        "tour",
        "the chapter run on this machine, in about a minute",
        "weft.console.tour.tour",
        (
            ("weft tour", "every stop: its code, its output here, the claim it checks"),
            ("weft tour --lang zh", "in Chinese"),
            ("weft tour --dialect mx", "the chapter's MXNet listings, unchanged"),
            ("weft tour --html tour.html", "also as one page to keep or send"),
        ),
        (
            Argument("--lang", "the language: en or zh", shows="LANGUAGE", default="en", choices=LANGUAGES),
            Argument("--dialect", "whose listings: torch or mx", shows="NAME", default="torch", choices=DIALECTS),
            Argument("--stop", "only this stop; may be repeated", shows="NAME", many=True),
            Argument("--html", "also write one self-contained page", shows="FILE", writes=True),
        ),
        "--stop NAME makes one stop alone: weft tour --stop hybridize",
    ),
    Command(
        "doctor",
        "can this machine, and this model, run as programs?",
        "weft.console.report.diagnosis",
        (
            ("weft doctor", "versions, processor, caches: what is well and what is not"),
            ("weft doctor net.py:net --input 1,512", "every place of a model that is in the way, at once"),
            ("weft doctor net.py:net --input 1,512 --check", "also whether its answers are eager PyTorch's"),
            ("weft doctor --measure", "after this machine was busy when Weft first ran on it"),
        ),
        (
            Argument("TARGET", TARGET.sentence, optional=True),
            INPUT,
            Argument("--check", "call the model by eager PyTorch too, and compare all that both give and change"),
            Argument("--measure", "measure this machine anew: how fast it computes, and how long its cores wait"),
        ),
    ),
    Command(
        "bench",
        "time a model beside its rivals, and compare the answers",
        "weft.console.bench.comparison",
        (
            ("weft bench net.py:net --input 1,512", "eager and hybrid, and the rivals that are installed"),
            ("weft bench net.py:net --vs eager --vs compile", "hybrid against these two"),
            ("weft bench net.py:net --html net.html", "also a page: ratios, the program, one call, memory"),
            ("weft bench net.py:step", "a training step that weft.step made"),
            ("weft bench net.py:net --export-markdown net.md", "the table to paste into an issue"),
        ),
        (
            TARGET,
            INPUT,
            Argument(
                "--vs",
                f"beside eager and ours: {', '.join(RIVALS)}; may be repeated",
                "NAME",
                choices=RIVALS,
                many=True,
            ),
            Argument("--threads", "threads that each may use (all cores)", shows="COUNT", read=whole),
            Argument("--warmup", "calls before timing starts", shows="COUNT", default=10, read=whole),
            Argument("--runs", "rounds, in each of which every rival is timed once", "COUNT", default=20, read=whole),
            Argument("--export-json", "also write the result, with all times", "FILE", writes=True),
            Argument("--export-markdown", "also write the table", shows="FILE", writes=True),
            Argument("--html", "also write a page with pictures, to keep or send", "FILE", writes=True),
            Argument("--trace", "also write one call's timeline, for Chrome's viewer", "FILE", writes=True),
        ),
        "fewer rounds and rivals take less time: --runs 5 --vs eager",
    ),
    Command(
        "show",
        "a program as text: what is computed, how, in which instructions",
        "weft.console.report.stages",
        (
            ("weft show net.py:net --input 1,512", "the graph, with the lines of your code"),
            ("weft show net.py:net --stage plan", "kernels, tiles and lanes; llvm and asm: their code"),
            ("weft show net.py:net --stage draw --output net.svg", "a picture"),
            ("weft show net.weft", "the graph in a saved program"),
        ),
        (
            Argument("TARGET", "file.py:name, a .weft file, or MXNet's net-symbol.json"),
            INPUT,
            Argument("--stage", ", ".join(STAGES), shows="STAGE", default="graph", choices=STAGES),
            Argument("--output", "write to a file instead of printing", shows="FILE", writes=True),
        ),
    ),
    Command(
        "run",
        "run a saved program, or a network that MXNet exported",
        "weft.console.report.running",
        (
            ("weft run net.weft", "on random inputs of the sizes it was made for"),
            ("weft run net.weft --input image.npy --output result.npy", "on your own"),
            ("weft run net-symbol.json --input 1,3,224,224", "a network that MXNet exported"),
        ),
        (
            Argument("FILE", "a program that Program.save wrote, or MXNet's net-symbol.json"),
            Argument(
                "--input",
                "an argument as an .npy file, in order; else random numbers (of net-symbol.json, sizes will do)",
                shows="FILE",
                many=True,
            ),
            Argument("--output", "write the result as .npy; a list of results as FILE-0.npy, ...", "FILE", writes=True),
        ),
    ),
    Command(
        "export",
        "a program as a C library, without Python and PyTorch",
        "weft.console.report.stages",
        (
            ("weft export net.weft --to net", "header, source, machine code, weights, a test in C"),
            ("weft export net.py:net --input 1,512 --to net", "of a model"),
        ),
        (
            Argument("TARGET", "file.py:name, a .weft file, or MXNet's net-symbol.json"),
            INPUT,
            Argument("--to", "the folder; its name begins the names of the C functions", shows="FOLDER"),
        ),
    ),
    Command(
        "train",
        "train on all devices, in one process or several; go on after a stop",
        "weft.console.report.running",
        (
            ("weft train examples.lenet --synthetic", "the chapter's LeNet, on made-up data"),
            ("weft train run.py:run --resume auto", "your own, from where it stopped"),
            ("weft train run.py:run --processes 2", "a process for each share of the batch, watched"),
        ),
        (
            Argument("TARGET", "file.py:name of what gives (trainer, train, test), or examples.lenet, .resnet18, .mlp"),
            Argument("--devices", "all, how many, or names: cpu:0,cpu:1", shows="NAMES", default="all"),
            Argument("--epochs", "epochs in all, with those before a stop", "COUNT", default=1, read=whole),
            Argument("--resume", "auto: go on from the newest checkpoint", shows="auto", choices=("auto",)),
            Argument("--checkpoints", "where each epoch is saved (checkpoints, with --resume)", shows="FOLDER"),
            Argument("--processes", "how many processes share each batch", "COUNT", default=1, read=whole),
            Argument(
                "--patience", "how long the others wait for a live process", "SECONDS", default=60.0, read=above_zero
            ),
            Argument("--set", "NAME=VALUE of a parameter of the run; may be repeated", "VALUE", many=True),
            Argument("--synthetic", "made-up data, where there is no network: for the examples"),
        ),
        "--resume auto keeps each epoch, and the same command goes on from the newest kept",
    ),
    Command(
        "ckpt",
        "checkpoint files of anybody: what is in them, are they sound?",
        "weft.console.report.checkpoints",
        (
            ("weft ckpt inspect model.pt", "its tensors, and what else it holds"),
            ("weft ckpt verify runs/", "every checkpoint of a folder, byte by byte"),
            ("weft ckpt diff old.pt new.safetensors", "names, shapes and values compared"),
            ("weft ckpt convert model.pt --to model.safetensors", "verified after it is written"),
            ("weft ckpt convert net-0000.params --to net.safetensors", "an MXNet file, also the other way"),
            ("weft ckpt clean runs/lenet --keep 2", "what killed writers left, and older checkpoints"),
        ),
        (
            Argument("ACTION", ", ".join(CHECKPOINT_ACTIONS), choices=CHECKPOINT_ACTIONS),
            Argument("FILE", ".safetensors, .pt, .pth, .params, or a folder", many=True),
            Argument(
                "--to",
                "convert: the new file; its ending, .safetensors, .pt or .params, says which kind",
                "FILE",
                writes=True,
            ),
            Argument("--force", "convert: write over a file that is there"),
            Argument("--keep", "clean: how many of the newest good checkpoints stay (all)", "COUNT", read=whole),
        ),
        "start it again: files that are done already are only looked at",
    ),
    Command(
        "devices",
        "what this machine has to compute with, and how fast it is",
        "weft.console.report.devices",
        (
            ("weft devices", "a row per device"),
            ("weft devices --no-speed", "without measuring"),
            ("weft devices --probe", "caches, memory, cores and the disk beside the chapter's table"),
        ),
        (
            Argument("--once", "print once and end: what it does anyway where nobody watches"),
            Argument("--watch", "print again every two seconds, until Ctrl-C"),
            Argument("--no-speed", "do not measure how fast each device is"),
            Argument("--probe", "also measure latencies and rates of caches, memory, cores and the disk"),
        ),
    ),
    Command(
        "env",
        "versions and settings, to paste into an issue",
        "weft.console.report.environment",
        (("weft env", "versions, processor, options that are set"), ("weft env --json", "for a program")),
    ),
)
