"""The replay finds the same texts twice, and names what changed."""

from unittest import mock

import pytest
from tests.replay.__main__ import differences, texts_of

from weft.codegen import plan_module


def digests(pattern: str) -> dict[str, list[dict[str, str]]]:
    return {name: [texts.digests() for texts in graphs] for name, graphs in texts_of(pattern).items()}


@pytest.mark.slow
def test_a_program_has_the_same_texts_again_and_another_emitter_is_named() -> None:
    before = digests("model perceptron*")
    assert {name: len(graphs) for name, graphs in before.items()} == {
        "model perceptron": 1,
        "model perceptron backward": 2,
    }
    assert differences(before, digests("model perceptron*")) == []
    with mock.patch.object(plan_module.PlanModule, "text", property(lambda self: f"{self.module}\n; more")):
        found = differences(before, digests("model perceptron*"))
    assert found == ["model perceptron: llvm", "model perceptron backward: llvm"]


def test_subjects_that_come_go_or_become_more_are_named() -> None:
    one, two = [{"graph": "a"}], [{"graph": "b"}]
    assert differences({"x": one, "y": one, "z": one}, {"x": two, "z": one + one, "new": one}) == [
        "y: is no longer compiled",
        "x: graph",
        "z: 1 graphs became 2",
        "new: is new",
    ]
