"""The environment is read once, completely, and a mistake in it is never passed over."""

import threading
from dataclasses import fields
from pathlib import Path

import pytest

from weft.config import OPTIONS, Config, config, overrides, read_config
from weft.errors import UsageError


def test_every_field_is_one_option_and_every_option_one_field() -> None:
    assert [option.field for option in OPTIONS] == [field.name for field in fields(Config)]
    assert [option.name for option in OPTIONS] == [f"WEFT_{field.name.upper()}" for field in fields(Config)]


def test_every_option_has_a_sentence() -> None:
    assert all(option.sentence and option.accepts for option in OPTIONS)


def test_an_empty_environment_gives_the_defaults() -> None:
    defaults = read_config({"HOME": "/nowhere"})
    assert (defaults.target, defaults.engine, defaults.threads, defaults.log) == ("native", "async", 0, "quiet")


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("WEFT_TARGET", "avx2", "target", "avx2"),
        ("WEFT_CACHE_DIR", "/somewhere", "cache_dir", Path("/somewhere")),
        ("WEFT_ENGINE", "serial", "engine", "serial"),
        ("WEFT_THREADS", "3", "threads", 3),
        ("WEFT_CUDA_GRAPHS", "on", "cuda_graphs", "on"),
        ("WEFT_KEPT_MEMORY", "0", "kept_memory", 0),
        ("WEFT_LOG", "debug", "log", "debug"),
    ],
)
def test_each_option_sets_its_field(name: str, text: str, field: str, value: object) -> None:
    assert getattr(read_config({name: text}), field) == value


def test_who_has_set_the_allocator_keeps_it_as_it_is() -> None:
    for environment in ({"MALLOC_ARENA_MAX": "1"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=65536"}):
        assert read_config(environment).kept_memory == 0
        assert read_config({**environment, "WEFT_KEPT_MEMORY": "8"}).kept_memory == 8
    assert read_config({"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}).kept_memory == 256


def test_the_cache_follows_the_desktop_convention() -> None:
    assert read_config({"XDG_CACHE_HOME": "/caches"}).cache_dir == Path("/caches/weft")
    assert read_config({}).cache_dir == Path.home() / ".cache" / "weft"


def test_a_home_folder_is_understood() -> None:
    assert read_config({"WEFT_CACHE_DIR": "~/weft"}).cache_dir == Path.home() / "weft"


def test_a_misspelt_option_is_a_warning_that_guesses_what_was_meant() -> None:
    with pytest.warns(UserWarning, match="WEFT_THREAD is set") as warned:
        assert read_config({"WEFT_THREAD": "2"}) == read_config({})
    assert str(warned[0].message) == (
        "WEFT_THREAD is set in the environment, but Weft has no such option\n"
        "  why   the options are WEFT_TARGET, WEFT_CACHE_DIR, WEFT_ENGINE, WEFT_THREADS, WEFT_CODEGEN, "
        "WEFT_CUDA_GRAPHS, WEFT_KEPT_MEMORY, WEFT_PROGRAMS_AT_ONCE, WEFT_WHOLE, WEFT_CLOCK, WEFT_LOG\n"
        "  fix   did you mean WEFT_THREADS?"
    )


@pytest.mark.parametrize("name", ["WEFT_QQQQQQQQQ", "WEFT_ZZZ"])
def test_an_unknown_option_like_no_other_should_be_unset(name: str) -> None:
    with pytest.warns(UserWarning, match=f"unset {name}"):
        read_config({name: "1"})


def test_a_warning_of_the_environment_blames_no_line_of_python() -> None:
    with pytest.warns(UserWarning, match="WEFT_THREAD is set") as warned:
        read_config({"WEFT_THREAD": "2"})
    assert warned[0].filename == "environment"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("WEFT_TARGET", "sse9"),
        ("WEFT_THREADS", "-1"),
        ("WEFT_THREADS", "two"),
    ],
)
def test_a_bad_value_is_an_error_that_lists_the_good_ones(name: str, text: str) -> None:
    with pytest.raises(UsageError) as error:
        read_config({name: text})
    accepts = next(option.accepts for option in OPTIONS if option.name == name)
    assert f"{name} is {text!r}" in str(error.value)
    assert accepts in str(error.value)


@pytest.mark.parametrize("name", [option.name for option in OPTIONS])
def test_an_empty_value_counts_as_unset(name: str) -> None:
    assert read_config({name: ""}) == read_config({name: " "}) == read_config({})


def test_overrides_hold_in_every_thread_until_the_block_ends() -> None:
    before = config()
    seen = []
    with overrides(engine="serial", threads=7):
        thread = threading.Thread(target=lambda: seen.append(config()))
        thread.start()
        thread.join(timeout=10)
        with overrides(threads=1):
            assert (config().engine, config().threads) == ("serial", 1)
        assert config().threads == 7
    assert (seen[0].engine, seen[0].threads) == ("serial", 7)
    assert config() is before


def test_overriding_what_does_not_exist_is_an_error() -> None:
    with pytest.raises(UsageError, match="no such option: thread\n"), overrides(thread=1):
        pass
