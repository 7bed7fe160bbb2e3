"""What every test shares: one thread an operator, a fixed seed, a cache of their own, golden files."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import weft
from weft.api.hybrid import Hybrid
from weft.compile import pipeline
from weft.config import overrides
from weft.lazy_tensors.tasks import engine

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite golden files with today's output; read the diff")


def pytest_configure() -> None:
    torch.set_num_threads(1)  # several test processes share the cores
    # A shell starts what runs in the background with Ctrl-C ignored; the tests that send it want Python's own handler.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.register_profile("weft", deadline=None)  # timing is bench's business; pytest-timeout ends what hangs
    settings.load_profile("weft")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    no_gpu = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(no_gpu)


@pytest.fixture(autouse=True)
def seed() -> None:
    """Start every test from the same random numbers, whatever ran before."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def own_failures() -> Iterator[None]:
    """Let no failure of a test be raised by a wait of another."""
    yield
    failures = engine().failures
    if failures.known:
        engine().finish_all()
        failures.heal([variable for failure in failures.known.values() for variable in failure.poisoned()])
        failures.known.clear()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep compiled code of the tests out of the user's cache, and the user's out of the tests."""
    # Tests of sizes are about programs; whether those are worth it is the business of tests/api/test_rare_calls.py.
    # What is refused is an error, else eager PyTorch would be tested: tests/api/test_values.py is about that.
    # Whether kernels or operators run by the clock is the business of tests/compile/test_clock.py.
    cache = tmp_path_factory.mktemp("cache")
    with overrides(cache_dir=cache, programs_at_once=64, whole="on", clock="off"):
        yield


@pytest.fixture
def exact_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every size have a program of its own: for tests of what has nothing to do with sizes that vary."""
    monkeypatch.setattr(Hybrid, "sizes_vary", False)


@pytest.fixture
def no_kept_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every plan be made anew: for tests that change what plans, or watch it."""
    monkeypatch.setattr(pipeline, "kept_plan", lambda _question, make: make(False))


@pytest.fixture
def usual_limits() -> Iterator[None]:
    """Let a test bound what may be queued, and take the bounds back after it."""
    limits = engine().limits
    before = (limits.bytes, limits.tasks)
    yield
    weft.limit(bytes=before[0], tasks=before[1])


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str, str], None]:
    """Compare a text with tests/golden/<stage>/<name>.txt; `pytest --bless` writes the file instead."""

    def compare(stage: str, name: str, text: str) -> None:
        path = GOLDEN / stage / f"{name}.txt"
        text = text.rstrip("\n") + "\n"
        if request.config.getoption("--bless"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"there is no golden file {path}; run pytest --bless and read what it writes"
        assert text == path.read_text(encoding="utf-8"), "if the new text is right, run pytest --bless"

    return compare


@pytest.fixture(autouse=True)
def _no_global_hooks_left() -> Iterator[None]:
    """Clear what PyTorch's own handles of global module hooks leave behind: `with_kwargs`, `always_call` stay noted."""
    yield
    for name, kept in vars(torch.nn.modules.module).items():
        if name.startswith("_global_") and isinstance(kept, dict) and kept:
            kept.clear()
