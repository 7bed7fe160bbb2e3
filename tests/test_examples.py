"""The examples of a practitioner run, and say what they are about."""

from __future__ import annotations

import runpy
import sys
import threading
from pathlib import Path

import pytest
import torch

import weft

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *words])
    main = runpy.run_path(str(EXAMPLES / name))["main"]
    assert not main()


@pytest.mark.slow
def test_an_image_model_gives_the_same_answers_as_a_program(monkeypatch, capsys) -> None:
    run("image_model.py", monkeypatch)
    assert "answers agree" in capsys.readouterr().out


@pytest.mark.slow
def test_a_gpu_and_a_cpu_train_one_model(monkeypatch, capsys) -> None:
    run("gpu_and_cpu.py", monkeypatch)
    assert "accuracy 0.9" in capsys.readouterr().out


def test_a_folder_of_old_checkpoints_is_converted_and_verified(monkeypatch, capsys) -> None:
    run("old_checkpoints.py", monkeypatch)
    told = capsys.readouterr().out
    assert told.count("the same model") == 3
    assert "cut.pt" in told
    assert "1 could not be converted" in told


@pytest.mark.slow
def test_a_server_answers_several_threads_as_eager_does_and_compiles_nothing() -> None:
    found = runpy.run_path(str(EXAMPLES / "serve.py"))
    net = found["prepared"]()
    traces = net.forward.traces
    reference = found["Classifier"]().eval()
    reference.load_state_dict(net.state_dict())
    with found["Server"](net, 2) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            taken = found["send"](server.server_port, 5, 0.0)
            texts = [[7] * length for length in range(16, 65, 6)]
            answers = [server.answer(text) for text in texts]
        finally:
            server.shutdown()
            thread.join()
    assert len(taken) == 8 * 5
    for text, answer in zip(texts, answers, strict=True):
        torch.testing.assert_close(torch.tensor([answer]), reference(torch.tensor([text])).detach())
    assert net.forward.traces == traces
    assert "imperatively" not in weft.explain(net)
