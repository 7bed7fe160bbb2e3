"""The contestants: what each is called, what prepares it, what it needs, and the settings it may choose from."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.job import CannotRunError, Job, Ready, Setting

ALL = Setting("all threads")
ONE = Setting("one thread", threads=1)
FUSED = Setting("fused optimizer", options={"fused": True})
FOREACH = Setting("foreach optimizer", options={"foreach": True})


def _onnx(label: str, threads: int | None = None, **options: bool) -> Setting:
    return Setting(label, threads, options)


ONNX_SETTINGS = (
    _onnx("sequential, newer export", newer=True),
    _onnx("sequential, older export", newer=False),
    _onnx("sequential, newer export, bound memory", newer=True, bound=True),
    _onnx("sequential, older export, bound memory", newer=False, bound=True),
    _onnx("sequential, newer export, one thread", 1, newer=True),
    _onnx("sequential, older export, one thread", 1, newer=False),
    _onnx("parallel, newer export", newer=True, parallel=True),
    _onnx("parallel, older export", newer=False, parallel=True),
)
VINO_SETTINGS = (
    Setting("from PyTorch", options={"from_onnx": False}),
    Setting("from PyTorch, one thread", 1, {"from_onnx": False}),
    Setting("from ONNX", options={"from_onnx": True}),
    Setting("from ONNX, one thread", 1, {"from_onnx": True}),
)
INDUCTOR = ("torch._dynamo", "torch._inductor.compile_fx", "torch._inductor.config")


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to run a workload; `prepare` names the function that sets it up, imported only where it runs."""

    name: str
    prepare: str
    settings: tuple[Setting, ...] = (ALL,)
    training_settings: tuple[Setting, ...] | None = None
    needs: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    is_weft: bool = False
    caches: bool = False
    threads: int | None = None

    def settings_for(self, trains: bool) -> tuple[Setting, ...]:
        """Give the settings to choose from."""
        return self.training_settings if trains and self.training_settings is not None else self.settings

    def missing(self) -> str | None:
        """Say which needed package is not installed."""
        absent = [name for name in self.needs if importlib.util.find_spec(name) is None]
        return f"{' and '.join(absent)} not installed: pip install -e '.[bench]'" if absent else None

    def load(self) -> Callable[[Job], Ready]:
        """Import what it needs, so that imports are not counted as compiling, and give what prepares it."""
        reason = self.missing()
        if reason is not None:
            raise CannotRunError(reason)
        for name in self.loads:
            importlib.import_module(name)
        module, _, function = self.prepare.partition(":")
        prepare: Callable[[Job], Ready] = getattr(importlib.import_module(module), function)
        return prepare


CONTESTANTS = (
    Contestant("eager", "bench.torch_contestants:eager", (ALL, ONE), (FUSED, FOREACH)),
    Contestant("channels_last", "bench.torch_contestants:eager_channels_last", (ALL,), (FUSED, FOREACH)),
    Contestant(
        "torch.compile", "bench.torch_contestants:compile_default", (ALL, ONE), (FUSED,), loads=INDUCTOR, caches=True
    ),
    Contestant(
        "torch.compile max",
        "bench.torch_contestants:compile_strongest",
        (ALL, ONE),
        (FUSED,),
        loads=INDUCTOR,
        caches=True,
    ),
    Contestant("torch.compile step", "bench.torch_contestants:compile_whole_step", loads=INDUCTOR, caches=True),
    Contestant("jit.freeze", "bench.torch_contestants:jit_freeze", (ALL, ONE)),
    Contestant(
        "onnxruntime",
        "bench.onnx_contestants:onnx_runtime",
        ONNX_SETTINGS,
        needs=("onnxruntime", "onnx", "onnxscript"),
        loads=("onnxruntime", "onnxscript", "torch.onnx"),
    ),
    Contestant("openvino", "bench.onnx_contestants:openvino", VINO_SETTINGS, needs=("openvino",), loads=("openvino",)),
    Contestant("jax", "bench.jax_contestants:jax_jit", needs=("jax",), loads=("jax",)),
    Contestant(
        "weft",
        "bench.weft_contestants:hybridized",
        (ALL,),
        (FUSED, FOREACH),
        loads=("weft",),
        is_weft=True,
        caches=True,
    ),
    Contestant(
        "weft one lane",
        "bench.weft_contestants:hybridized",
        (ONE,),
        (FUSED,),
        loads=("weft",),
        is_weft=True,
        threads=1,
    ),
    Contestant("weft.step", "bench.weft_contestants:whole_step", loads=("weft",), is_weft=True, caches=True),
)


def choose(names: Sequence[str]) -> tuple[Contestant, ...]:
    """Give the contestants of these names; all of them where none is named."""
    known = {contestant.name: contestant for contestant in CONTESTANTS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"no contestant is called {', '.join(unknown)}: there are {', '.join(known)}")
    return tuple(contestant for contestant in CONTESTANTS if not names or contestant.name in names)


def by_name(name: str) -> Contestant:
    """Give the contestant of this name."""
    return next(contestant for contestant in CONTESTANTS if contestant.name == name)
