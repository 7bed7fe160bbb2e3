"""What was measured on one workload, and what follows from it: the best peer, the ratio, the bars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.contestants import by_name
from bench.machine import NOISY_CORES
from bench.workloads import COMPILE, FAMILIES, NAMED, Workload
from bench.workloads import by_name as workload_of
from weft.console.bench.harness import Spread, geometric_mean, ratios, spread

WHOLE, ONE_LANE, STEP, COMPILED = "weft", "weft one lane", "weft.step", "torch.compile"
COMPILE_SHARE = {"training": 0.25}
USUAL_COMPILE_SHARE = 0.2
CACHED_BAR = 0.3
SPREAD_BAR = 0.15


@dataclass(frozen=True, slots=True)
class Entry:
    """One contestant on one workload."""

    rounds: tuple[float, ...]
    first_call: float
    cached_first_call: float | None
    setting: str
    remarks: tuple[str, ...]
    error: float
    allowed: float
    verdict: str
    compiles: bool = True

    @property
    def time(self) -> Spread:
        """Give the median time of a call and its quartiles."""
        return spread(self.rounds)


@dataclass(frozen=True, slots=True)
class Row:
    """One workload: entries by contestant, and why others have none."""

    workload: Workload
    entries: Mapping[str, Entry]
    skipped: Mapping[str, str]
    foreign: float | None
    settled: bool
    operations: int

    @property
    def ours(self) -> str | None:
        """Name Weft's entry: the faster of its ways, on all lanes, among those with a right answer."""
        names = [name for name in (WHOLE, STEP) if name in self.entries and self.entries[name].verdict == "right"]
        return min(names, key=lambda name: self.entries[name].time.median, default=None)

    @property
    def best_peer(self) -> str | None:
        """Name the fastest contestant that is not Weft and whose answer is not wrong."""
        peers = [name for name, entry in self.entries.items() if not by_name(name).is_weft and entry.verdict != "wrong"]
        return min(peers, key=lambda name: self.entries[name].time.median, default=None)

    def ratio_to(self, peer: str | None) -> Spread | None:
        """Divide a peer's time by Weft's, round by round."""
        return self.between(peer, self.ours)

    def between(self, above: str | None, below: str | None) -> Spread | None:
        """Divide one entry's time by another's, round by round."""
        if above is None or below is None or above not in self.entries or below not in self.entries:
            return None
        return ratios(self.entries[above].rounds, self.entries[below].rounds)

    @property
    def ratio(self) -> Spread | None:
        """Give how many times faster Weft is than the best peer."""
        return self.ratio_to(self.best_peer)

    @property
    def lanes(self) -> Spread | None:
        """Give how many times faster all lanes are than one."""
        return self.between(ONE_LANE, WHOLE)

    @property
    def noisy(self) -> str | None:
        """Say why these times are not to be trusted, where they are not."""
        reasons = []
        if self.foreign is not None and self.foreign > NOISY_CORES:
            reasons.append(f"others used {self.foreign:.2f} cores")
        shown = self.ratio
        if shown is not None and shown.relative > SPREAD_BAR:
            reasons.append(f"the ratio's quartiles lie {shown.relative:.0%} apart")
        return " and ".join(reasons) or None

    def share_of_peak(self, name: str, peak_gflops: float) -> float | None:
        """Give which part of the machine's arithmetic a contestant uses, counting products and convolutions only."""
        if name not in self.entries or not self.operations:
            return None
        return self.operations / self.entries[name].time.median / 1e9 / peak_gflops

    def failures(self) -> list[str]:
        """List every bar that this row is below."""
        found = [
            f"{name} is {entry.verdict}: error {entry.error:.2g}, allowed {entry.allowed:.2g}"
            for name, entry in self.entries.items()
            if by_name(name).is_weft and entry.verdict != "right"
        ]
        bar, shown = self.workload.bar, self.ratio
        if bar is not None and shown is not None and shown.median < bar:
            found.append(f"{shown.median:.2f} times the best peer ({self.best_peer}), the bar is {bar:g}")
        return found + self._slow_compiling()

    def _slow_compiling(self) -> list[str]:
        found = []
        name, limit = self.ours, self.workload.first_call_bar
        if name is None:
            return []
        entry, peer = self.entries[name], self.entries.get(COMPILED)
        if limit is not None and entry.first_call > limit:
            found.append(f"first call {entry.first_call:.2f} s, the bar is {limit:g}")
        share = COMPILE_SHARE.get(self.workload.group, USUAL_COMPILE_SHARE)
        # What it leaves to eager it compiles in no time.
        if peer is not None and peer.compiles and entry.first_call > share * peer.first_call:
            part = entry.first_call / peer.first_call
            found.append(f"first call {part:.2f} of torch.compile's, the bar is {share:g}")
        cached = entry.cached_first_call
        if cached is not None and cached > CACHED_BAR and self.workload.group in (NAMED, FAMILIES):
            found.append(f"first call from the cache {cached:.2f} s, the bar is {CACHED_BAR:g}")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Give everything for the JSON file."""
        spreads = {"ratio": self.ratio, "lanes": self.lanes, "to_torch_compile": self.ratio_to(COMPILED)}
        return {
            "workload": self.workload.name,
            "title": self.workload.title,
            "group": self.workload.group,
            "bar": self.workload.bar,
            "best_peer": self.best_peer,
            "ours": self.ours,
            **{name: found.as_dict() if found else None for name, found in spreads.items()},
            "failures": self.failures(),
            "noisy": self.noisy,
            "foreign_cores": self.foreign,
            "settled": self.settled,
            "operations": self.operations,
            "contestants": {name: _entry_as_dict(entry) for name, entry in self.entries.items()},
            "skipped": dict(self.skipped),
        }


def row_of(data: Mapping[str, Any]) -> Row:
    """Take a row from a file of results; the title and the bars are today's."""
    entries = {name: _entry_of(entry) for name, entry in data["contestants"].items()}
    workload = workload_of(data["workload"])
    return Row(workload, entries, data["skipped"], data["foreign_cores"], data["settled"], data["operations"])


def _entry_of(data: Mapping[str, Any]) -> Entry:
    plain = {name: data[name] for name in Entry.__slots__ if name in data}
    return Entry(**{**plain, "rounds": tuple(data["rounds"]), "remarks": tuple(data["remarks"])})


def _entry_as_dict(entry: Entry) -> dict[str, Any]:
    plain = {name: getattr(entry, name) for name in entry.__slots__ if name not in ("rounds", "remarks")}
    return {"time": entry.time.as_dict(), **plain, "remarks": list(entry.remarks), "rounds": list(entry.rounds)}


def means(rows: Iterable[Row], group: str, peer: str | None = None) -> float | None:
    """Give the geometric mean of a group's ratios: to the best peer of each row, or to one peer."""
    found = [
        row.ratio_to(peer) if peer else row.ratio
        for row in rows
        if row.workload.group == group and row.workload.group != COMPILE
    ]
    return geometric_mean([shown.median for shown in found if shown is not None])
