"""A fixed part of the conformance run, over all operators; `make conformance` runs the whole."""

import random
import warnings

import pytest
from tests.conformance.cases import Section, Status
from tests.conformance.contestants import CONTESTANTS
from tests.conformance.judge import judge
from tests.conformance.sweep import Options, chosen

SAMPLES_OF_AN_ENTRY = {
    "values": 4,
    "inplace": 1,
    "streams": 1,
    "gradients": 1,
    "errors": 1,
    "modules": 1,
    "programs": 3,
}
SHARDS = {"values": 16, "inplace": 2, "streams": 1, "gradients": 8, "errors": 3, "modules": 8, "programs": 2}
LEAST_VALUES = 2000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def sections() -> dict[str, Section]:
    """Import PyTorch's databases only when a test of this file runs: it takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tests.conformance.sections import SECTIONS
    return SECTIONS


def pick(section: str, entry: str, count: int) -> list[int]:
    """Choose an entry's samples: always the same ones, in every process."""
    size = min(count, SAMPLES_OF_AN_ENTRY[section])
    return sorted(random.Random(f"{section} {entry}").sample(range(count), size))


def run_shard(section: Section, shard: int, shards: int):
    options = Options(pick=lambda entry, count: pick(section.name, entry, count))
    for entry in list(section.entries())[shard::shards]:
        trials = section.trials(entry)
        for index in chosen(options, entry, len(trials)):
            yield judge(trials[index], CONTESTANTS[options.contestant], (section.name, entry, index))


@pytest.mark.parametrize(("name", "shard"), [(name, i) for name, count in SHARDS.items() for i in range(count)])
def test_hybridized_samples_equal_eager(name, shard, sections):
    records = list(run_shard(sections[name], shard, SHARDS[name]))
    failed = [f"{r.status.value}: {r.name}\n  {r.detail}" for r in records if r.status.failed]
    assert not failed, "\n".join(failed)
    unsupported = [r for r in records if r.status is Status.UNSUPPORTED]
    # A small sample may hit many of the few: the whole run keeps to the section's own share.
    assert len(unsupported) <= 4 + 3 * sections[name].most_unsupported * len(records), unsupported
    assert name != "values" or len(records) >= LEAST_VALUES / SHARDS["values"]
