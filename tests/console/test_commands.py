"""What each command gives on good input, and what is told to programs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.console.conftest import Weft, transcript

import weft as package

SHOWN = (
    "weft show net.py:net",
    "weft show net.py:double --input 2,3 --stage graph",
    "weft show net.py:double --input 4:i64 --stage graph",
    "weft show net.py:net --show-code",
    "weft show net.py:net --stage draw --output net.svg",
    "weft doctor net.py:net --show-code",
    "weft devices --no-speed --show-code",
    "weft devices --watch --show-code",
)


def unpriced(plan: str) -> str:
    """The text of a plan without its microseconds: what this machine was measured to do varies a little by process."""
    return re.sub(r" *[0-9.]+ us\b", " TIME us", plan)


def saved(folder: Path) -> Path:
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 2)
    with torch.no_grad():
        net.weight.fill_(0.5)
        net.bias.zero_()
        package.program(net, torch.ones(4, 3)).save(folder / "net.weft")
    return folder / "net.weft"


def test_programs_are_shown_with_lines_of_the_file(weft: Weft, golden) -> None:
    golden("cli", "show", transcript(weft, SHOWN))


@pytest.mark.parametrize(("stage", "word"), [("plan", "gemm"), ("llvm", "define"), ("asm", "serial:")])
def test_every_stage_of_a_model_can_be_shown_and_kept(stage: str, word: str, weft: Weft, folder: Path) -> None:
    assert word in weft("show", "net.py:net", "--stage", stage).out
    assert weft("show", "net.py:net", "--stage", stage, "--output", "kept.txt").out == "written: kept.txt\n"
    assert word in (folder / "kept.txt").read_text(encoding="utf-8")


@pytest.mark.slow
def test_shown_code_runs_and_prints_the_same(weft: Weft, folder: Path) -> None:
    code = weft("show", "net.py:net", "--stage", "plan", "--show-code").out
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
    assert unpriced(found.stdout) == unpriced(weft("show", "net.py:net", "--stage", "plan").out)


def test_a_saved_program_is_shown_in_every_stage(weft: Weft, folder: Path) -> None:
    saved(folder)
    for stage, word in (("graph", "graph Linear"), ("plan", "region 0"), ("llvm", "define"), ("asm", "ret")):
        assert word in weft("show", "net.weft", "--stage", stage).out
    assert weft("show", "net.weft", "--input", "4,3").status == 2


def test_a_saved_program_runs_on_random_numbers_and_on_files(weft: Weft, folder: Path) -> None:
    saved(folder)
    assert weft("run", "net.weft").status == 0
    np.save(folder / "ones.npy", np.ones((4, 3), dtype=np.float32))
    answer = weft("run", "net.weft", "--input", "ones.npy", "--output", "result.npy", "--json")
    found = json.loads(answer.out)
    assert found["results"][0] == {"type": "float32[4,2]", "least": 1.5, "mean": 1.5, "greatest": 1.5}
    assert np.array_equal(np.load(folder / "result.npy"), np.full((4, 2), 1.5, dtype=np.float32))


def test_running_says_what_is_wrong_with_a_file_or_an_input(weft: Weft, folder: Path, golden) -> None:
    saved(folder)
    whole = (folder / "net.weft").read_bytes()
    (folder / "cut.weft").write_bytes(whole[:-5])
    (folder / "words.weft").write_text("hello", encoding="utf-8")
    np.save(folder / "ones.npy", np.ones((4, 3), dtype=np.float32))
    np.save(folder / "small.npy", np.ones((2, 3), dtype=np.float32))
    np.save(folder / "objects.npy", np.array([{}]), allow_pickle=True)
    lines = [f"weft run {name}.weft" for name in ("cut", "words", "nt")]
    lines += [f"weft run net.weft --input {name}.npy" for name in ("small", "objects", "absent")]
    lines += ["weft run net.weft --input 4,3", "weft run net.weft --input ones.npy", "weft run net.weft --show-code"]
    golden("cli", "run", transcript(weft, lines))


def test_doctor_finds_every_place_of_a_model_at_once(weft: Weft, golden) -> None:
    answer = weft("doctor", "net.py:Branchy")
    assert answer.status == 3
    golden("cli", "doctor", answer.out[answer.out.index("Branchy") :])
    found = json.loads(weft("doctor", "net.py:Branchy", "--json").out)
    assert len(found["model"]["obstacles"]) == 3


def test_doctor_says_what_a_model_becomes(weft: Weft) -> None:
    answer = weft("doctor", "net.py:net")
    assert answer.status == 0
    assert "Sequential runs as a program" in answer.out


def test_doctor_notices_a_cache_that_cannot_be_written(weft: Weft, folder: Path) -> None:
    (folder / "file").write_text("", encoding="utf-8")
    with package.config.overrides(cache_dir=folder / "file"):
        answer = weft("doctor")
    assert answer.status == 1
    assert "WEFT_CACHE_DIR" in answer.out


def test_devices_have_a_row_each_and_shares_that_add_up(weft: Weft) -> None:
    found = json.loads(weft("devices", "--no-speed", "--json").out)
    assert next(row["name"] for row in found["devices"]) == "cpu:0"
    assert sum(row["share"] for row in found["devices"]) == pytest.approx(1)
    assert {row["speed"] for row in found["devices"]} == {None}
    assert "GFLOP/s" in weft("devices").out


def test_env_names_versions_and_nothing_of_the_person(weft: Weft) -> None:
    found = json.loads(weft("env", "--json").out)
    assert (found["schema"], found["command"], found["weft"]) == (1, "env", package.__version__)
    assert found["packages"]["torch"] == torch.__version__
    assert str(Path.home()) not in weft("env").out


def test_what_a_model_prints_is_not_the_result(weft: Weft, folder: Path) -> None:
    (folder / "loud.py").write_text("print('hello')\ndef double(x):\n    print('called')\n    return x * 2\n")
    answer = weft("show", "loud.py:double", "--input", "2", "--json")
    assert json.loads(answer.out)["stage"] == "graph"
    assert "hello" in answer.err
    assert "called" in answer.err


@pytest.mark.parametrize(
    ("text", "told"),
    [("import nothing_like_it", "ModuleNotFoundError"), ("def f(:", "SyntaxError"), ("exit(3)", "SystemExit")],
)
def test_a_file_that_does_not_run_is_named_with_its_line(text: str, told: str, weft: Weft, folder: Path) -> None:
    (folder / "bad.py").write_text(f"x = 1\n{text}\n", encoding="utf-8")
    answer = weft("show", "bad.py:net")
    assert (answer.status, answer.out) == (2, "")
    assert told in answer.err
    assert "where bad.py:2" in answer.err


class Hostile:
    """What a pickle of it does, if anybody reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


def test_a_pickle_in_an_input_does_not_run(weft: Weft, folder: Path) -> None:
    saved(folder)
    np.save(folder / "hostile.npy", np.array([Hostile(folder / "ran")], dtype=object), allow_pickle=True)
    assert weft("run", "net.weft", "--input", "hostile.npy").status == 4
    assert not (folder / "ran").exists()
    np.load(folder / "hostile.npy", allow_pickle=True)  # the file would have done it
    assert (folder / "ran").exists()
