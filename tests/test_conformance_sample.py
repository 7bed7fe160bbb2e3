"""A fixed part of the conformance run, over all operators; `make conformance` runs the whole."""

import random
import warnings

import pytest
from tests.conformance.cases import Record, Section, Status
from tests.conformance.contestants import CONTESTANTS
from tests.conformance.judge import judge
from tests.conformance.sweep import Options, chosen

from weft.config import overrides

# Below 1: one sample of some entries. Library calls take the entries whose random numbers are smallest, machine code
# those with the largest, so that no entry is taken twice before all are.
SAMPLES_OF_AN_ENTRY: dict[str, float] = {
    "values": 0.25,
    "inplace": 0.3,
    "streams": 1,
    "gradients": 0.12,
    "errors": 0.2,
    "modules": 0.25,
    "layouts": 1,
    "programs": 1,
    "sizes": 0.06,
}
NATIVE_SAMPLES_OF_AN_ENTRY: dict[str, float] = {
    "values": 0.25,
    "inplace": 0.3,
    "gradients": 0.12,
    "dtypes": 0.12,
    "modules": 0.25,
    "layouts": 1,
    "programs": 2,
    "graphs": 0.3,
    "sizes": 0.025,
}
SHARDS = {
    "values": 8,
    "inplace": 2,
    "streams": 1,
    "gradients": 4,
    "errors": 3,
    "modules": 4,
    "layouts": 1,
    "programs": 2,
    "sizes": 4,
}
NATIVE_SHARDS = {
    "values": 8,
    "inplace": 2,
    "gradients": 8,
    "dtypes": 4,
    "modules": 4,
    "layouts": 1,
    "programs": 4,
    "graphs": 2,
    "sizes": 4,
}
LEAST_VALUES = 80

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def sections() -> dict[str, Section]:
    """Import PyTorch's databases only when a test of this file runs: it takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tests.conformance.sections import SECTIONS
    return SECTIONS


def pick(section: str, entry: str, count: int, samples: dict[str, float]) -> list[int]:
    """Choose an entry's samples: always the same ones, in every process."""
    chance = random.Random(f"{section} {entry}")
    wanted = samples[section]
    drawn = chance.random() if wanted < 1 else 0.0
    is_taken = drawn >= 1 - wanted if samples is NATIVE_SAMPLES_OF_AN_ENTRY else drawn < wanted
    size = int(wanted) if wanted >= 1 else int(is_taken)
    return sorted(chance.sample(range(count), min(count, size)))


def run_shard(section: Section, shard: int, shards: int, samples: dict[str, float]):
    options = Options(pick=lambda entry, count: pick(section.name, entry, count, samples))
    for entry in list(section.entries())[shard::shards]:
        trials = section.trials(entry)
        for index in chosen(options, entry, len(trials)):
            yield judge(trials[index], CONTESTANTS[options.contestant], (section.name, entry, index))


def numbered(shards: dict[str, int]) -> list[tuple[str, int]]:
    return [(name, shard) for name, count in shards.items() for shard in range(count)]


def check(section: Section, records: list[Record]) -> None:
    failed = [f"{r.status.value}: {r.name}\n  {r.detail}" for r in records if r.status.failed]
    assert not failed, "\n".join(failed)
    unsupported = [r for r in records if r.status is Status.UNSUPPORTED]
    # A small sample may hit many of the few: the whole run keeps to the section's own share.
    assert len(unsupported) <= 4 + 3 * section.most_unsupported * len(records), unsupported


@pytest.mark.parametrize(("name", "shard"), numbered(SHARDS))
def test_samples_in_library_calls_equal_eager(name, shard, sections):
    with overrides(codegen="library"):
        records = list(run_shard(sections[name], shard, SHARDS[name], SAMPLES_OF_AN_ENTRY))
    check(sections[name], records)
    assert name != "values" or len(records) >= LEAST_VALUES / SHARDS["values"]


@pytest.mark.parametrize(("name", "shard"), numbered(NATIVE_SHARDS))
def test_samples_in_machine_code_are_within_the_bound(name, shard, sections):
    with overrides(codegen="native"):
        records = list(run_shard(sections[name], shard, NATIVE_SHARDS[name], NATIVE_SAMPLES_OF_AN_ENTRY))
    check(sections[name], records)
