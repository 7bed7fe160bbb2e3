"""Describe what the processor of this machine, or another one, can do: vector width, caches, cores.

Whatever depends on the processor asks here; code generators never look at feature names or widths of their own.
"""

import math
import os
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from llvmlite import binding as llvm

from weft.config import config
from weft.errors import UsageError

V3_FEATURES = ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sse4.1", "sse4.2", "ssse3")
V4_FEATURES = (*V3_FEATURES, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
# LLVM's tables make it split 512-bit vectors on many processors that run them at full width.
FULL_WIDTH = "-prefer-256-bit"

# Processors whose VDPBF16PS takes as long as a multiply-add, by LLVM's names.
FAST_PAIRS = frozenset({"znver4", "znver5"})

CPU_FOLDER = Path("/sys/devices/system/cpu")
CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")
CACHE_SIZES = {1: 32 * 1024, 2: 512 * 1024, 3: 8 * 1024 * 1024}  # small for today: a tile that fits them fits anywhere
CACHE_SYSCONF = {1: "SC_LEVEL1_DCACHE_SIZE", 2: "SC_LEVEL2_CACHE_SIZE", 3: "SC_LEVEL3_CACHE_SIZE"}
SIZE_UNITS = {"K": 1024, "M": 1024**2, "G": 1024**3}


@dataclass(frozen=True)
class Target:
    """A processor as the planner and the code generator see it; cache sizes are in bytes."""

    name: str
    triple: str
    cpu: str
    features: tuple[str, ...]
    vector_bytes: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    cores: int

    def lanes(self, bits: int) -> int:
        """Count the numbers of so many bits in one vector register: `lanes(32)` is 16 with AVX-512."""
        if bits not in {8, 16, 32, 64}:
            raise UsageError(f"no vector element has {bits} bits", why="vectors hold elements of 8, 16, 32 or 64 bits")
        return self.vector_bytes * 8 // bits

    def has(self, feature: str) -> bool:
        """Tell whether the processor has a feature, by LLVM's name for it: `has("avx512bf16")`."""
        return f"+{feature}" in self.features

    @property
    def feature_string(self) -> str:
        """Give the features as LLVM takes them: `+avx2,+fma,-avx512f`."""
        return ",".join(self.features)

    @property
    def multiplies_pairs(self) -> bool:
        """Tell whether products of bfloat16 by its own instruction take less time than of float32.

        On an Emerald Rapids core VDPBF16PS takes 1.9 cycles, and in half of one a multiply-add does as many numbers: 90
        GFLOP/s beside 150. Zen 4 and 5 do as many of either, and the one does twice as much.
        """
        return self.has("avx512bf16") and self.cpu in FAST_PAIRS

    def masked(self, level: str) -> "Target":
        """Restrict this machine to the instructions of a level: "avx512", "avx2", "generic", or "native" for all."""
        if level == "native":
            return self
        levels = LEVELS[architecture(self.triple)]
        if level not in levels:
            raise UsageError(
                f"the target level {level!r} does not exist on {architecture(self.triple)}",
                why="its levels are native, " + ", ".join(levels),
                fix="set WEFT_TARGET to one of these, or unset it",
            )
        wanted = levels[level]
        # "generic" is what every processor of the architecture has, also where LLVM could not list the features.
        if level != "generic" and (missing := [feature for feature in wanted.needs if not self.has(feature)]):
            raise UsageError(
                f"this processor ({self.cpu}) cannot run {level} code",
                why="it lacks " + ", ".join(missing),
                fix="choose a lower level, or unset WEFT_TARGET",
            )
        return replace(self, name=level, cpu=wanted.cpu, features=wanted.features, vector_bytes=wanted.vector_bytes)


@dataclass(frozen=True)
class Level:
    """A set of instructions that many processors share, so that code for it is portable between them."""

    cpu: str
    needs: tuple[str, ...]
    extra: tuple[str, ...]
    vector_bytes: int

    @property
    def features(self) -> tuple[str, ...]:
        """Give the features as LLVM spells them."""
        return (*(f"+{feature}" for feature in self.needs), *self.extra)


# Widest first: the first level that a machine can run gives its vector width.
LEVELS = {
    "x86_64": {
        "avx512": Level("x86-64-v4", V4_FEATURES, (FULL_WIDTH,), 64),
        "avx2": Level("x86-64-v3", V3_FEATURES, (), 32),
        "generic": Level("x86-64", ("sse2",), (), 16),
    },
    "aarch64": {"generic": Level("generic", ("neon",), (), 16)},
    "other": {"generic": Level("", (), (), 16)},
}
TRIPLES = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}
ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def architecture(triple: str) -> str:
    """Give the architecture of an LLVM triple as LEVELS spells it."""
    return ARCHITECTURES.get(triple.split("-", maxsplit=1)[0].lower(), "other")


def host_target() -> Target:
    """Describe this machine, restricted as WEFT_TARGET says."""
    return _host(config().target)


def cross_target(arch: str, level: str = "generic") -> Target:
    """Describe a machine that is not here, to compile for: `cross_target("aarch64")`, `cross_target("x86_64", "avx2")`.

    Nothing is known of its caches and cores, so the sizes are small and it has one core.
    """
    if arch not in TRIPLES or level not in LEVELS[arch]:
        known = ", ".join(f"{arch} {level}" for arch in TRIPLES for level in LEVELS[arch])
        raise UsageError(f"Weft cannot compile for {arch} {level}", why=f"it compiles for {known}")
    wanted = LEVELS[arch][level]
    return Target(
        name=f"{arch}-{level}",
        triple=TRIPLES[arch],
        cpu=wanted.cpu,
        features=wanted.features,
        vector_bytes=wanted.vector_bytes,
        l1_bytes=CACHE_SIZES[1],
        l2_bytes=CACHE_SIZES[2],
        l3_bytes=CACHE_SIZES[3],
        cores=1,
    )


@cache
def _host(level: str) -> Target:
    if level != "native":
        return _host("native").masked(level)
    triple = llvm.get_default_triple()
    present = host_features()
    width = next(
        (row.vector_bytes for row in LEVELS[architecture(triple)].values() if all(present.get(f) for f in row.needs)),
        16,
    )
    features = tuple(f"{'+' if on else '-'}{feature}" for feature, on in sorted(present.items()))
    if width == LEVELS["x86_64"]["avx512"].vector_bytes:
        features = (*features, FULL_WIDTH)
    return Target(
        name=level,
        triple=triple,
        cpu=llvm.get_host_cpu_name(),
        features=features,
        vector_bytes=width,
        l1_bytes=cache_bytes(1),
        l2_bytes=cache_bytes(2),
        l3_bytes=cache_bytes(3),
        cores=usable_cores(),
    )


def host_features() -> dict[str, bool]:
    """Give every feature LLVM knows for this architecture, and whether this processor has it."""
    try:
        return dict(llvm.get_host_cpu_features())
    except RuntimeError:
        # LLVM cannot ask this operating system. The processor's name still implies its features to LLVM.
        return {}


def cache_bytes(level: int) -> int:
    """Give the size of the data cache of a level: from the kernel, else the C library, else a cautious guess."""
    for index in sorted(CPU_FOLDER.glob("cpu0/cache/index*")):
        kind, number, size = (_text(index / name) for name in ("type", "level", "size"))
        if kind != "Instruction" and number == str(level) and size:
            return int(size.rstrip("KMG")) * SIZE_UNITS.get(size[-1], 1)
    name = CACHE_SYSCONF[level]
    known = os.sysconf(name) if name in getattr(os, "sysconf_names", {}) else 0
    return known if known > 0 else CACHE_SIZES[level]


def usable_cores() -> int:
    """Count the cores this process may run on at once: its affinity, and a container's share where one is set."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota, _, period = _text(CGROUP_LIMIT).partition(" ")
    if quota.isdigit() and period.isdigit():
        cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(cores, 1)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
