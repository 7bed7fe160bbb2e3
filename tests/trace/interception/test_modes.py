"""Modes of a thread are found, and modes that Weft makes itself are as PyTorch makes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.trace.interception import modes
from weft.trace.interception.modes import operators_are_plain
from weft.trace.interception.user_lines import UnplacedShapes

MODES = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference": torch.inference_mode,
    "default device": lambda: torch.device("meta"),
    "fake tensors": FakeTensorMode,
}


@pytest.mark.parametrize("mode", MODES)
def test_operators_are_not_plain_while_a_mode_has_a_say(mode: str) -> None:
    assert operators_are_plain()
    with MODES[mode]():
        assert not operators_are_plain()
    assert operators_are_plain()


def test_operators_are_not_plain_in_a_transform() -> None:
    told = []
    torch.func.vmap(lambda x: (told.append(operators_are_plain()), x)[1])(torch.ones(2))
    assert told == [False]


def test_gradients_that_are_off_change_no_operator() -> None:
    with torch.no_grad():
        assert operators_are_plain()


OF_ONE_MODE = {"_stack_trace", "fake_tensor_converter", "nt_tensor_id_counter", "nt_tensor_id_initial_count"}


def test_a_mode_of_stand_ins_that_is_made_without_dynamo_has_all_that_the_constructor_sets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(modes, "is_dynamo_loaded", lambda: False)
    ours = vars(modes.fake_mode())
    theirs = vars(FakeTensorMode(allow_non_fake_inputs=True, static_shapes=True))
    assert ours.keys() == theirs.keys()
    assert {name: ours[name] for name in ours.keys() - OF_ONE_MODE} == {
        name: theirs[name] for name in theirs.keys() - OF_ONE_MODE
    }


def test_importing_what_makes_programs_imports_no_dynamo() -> None:
    code = "import sys, weft; weft.hybridize; assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


FIRST_CALLS = """
import sys, torch, weft
net = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
weft.hybridize(net)
x = torch.randn(2, 5, 16)
with torch.no_grad():
    net.eval()(x)
net.train()(x).sum().backward()

class Checkpointed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = torch.nn.Linear(16, 16)

    def forward(self, x, use_reentrant):
        return torch.utils.checkpoint.checkpoint(lambda x: self.inside(x).relu(), x, use_reentrant=use_reentrant)

for use_reentrant in (False, True):
    weft.hybridize(Checkpointed())(x.requires_grad_(), use_reentrant).sum().backward()
assert torch.utils.checkpoint.torch is torch
assert "torch._dynamo" not in sys.modules
"""


def test_first_calls_import_no_dynamo(tmp_path: Path) -> None:
    run_apart(FIRST_CALLS, tmp_path)


THEN_DYNAMO = """
import gc, types
import torch._dynamo
functions = [one for one in gc.get_objects() if isinstance(one, types.FunctionType) and "__dynamo_disable" in vars(one)]
before = {one: one.__dynamo_disable for one in functions}
assert torch._refs.add(torch.ones(2), 1).tolist() == [2, 2]
hidden = [one.__dynamo_disable for one in functions if one.__dynamo_disable is not before[one]]
assert hidden and all(hasattr(one, "_torchdynamo_disable") for one in hidden)
assert torch.compile(lambda x: torch._refs.mul(x, 3), backend="eager")(torch.ones(2)).tolist() == [3, 3]
"""


def test_what_pytorch_hides_from_dynamo_is_hidden_once_somebody_imports_it(tmp_path: Path) -> None:
    run_apart(FIRST_CALLS + THEN_DYNAMO, tmp_path)


STREAM = """
import sys
import torch
import weft
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm, self.inside = nn.Embedding(50, 16), nn.LayerNorm(16), nn.Linear(16, 48)

    def forward(self, words):
        x = self.norm(self.words(words) + self.words.weight[0])
        q, k, v = self.inside(x).view(*words.shape, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        found = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        return nn.functional.gelu(found + x).mean(1) / 2

net = Net()
given = [torch.randint(50, (2, length)) for length in (5, 9, 7)]
with torch.no_grad():
    right = [net(words) for words in given]
    weft.hybridize(net)
    for words, expected in zip(given, right):
        torch.testing.assert_close(net(words), expected)
assert len(list(net.forward.varying)) == 1, net.forward.varying.refusals
assert "torch._dynamo" not in sys.modules
double = torch.compile(lambda x: x.sum(1) * 2, backend="eager", dynamic=True)
assert double(torch.ones(3, 2)).tolist() == [4, 4, 4]
with torch.no_grad():
    torch.testing.assert_close(weft.hybridize(nn.Softmax(-1))(torch.ones(2, 2)), torch.full((2, 2), 0.5))
"""


def test_programs_of_one_and_of_many_sizes_need_no_dynamo_and_whoever_needs_it_has_it(tmp_path: Path) -> None:
    run_apart(STREAM, tmp_path)


def test_a_table_of_symbols_without_dynamo_has_all_that_pytorchs_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "is_dynamo_loaded", lambda: False)
    ours = modes.table_of_symbols(specialize_zero_one=False)
    assert type(ours) is not UnplacedShapes
    assert vars(ours).keys() == vars(UnplacedShapes(specialize_zero_one=False)).keys()


def run_apart(code: str, cache: Path) -> None:
    environment = {**os.environ, "WEFT_CACHE_DIR": str(cache)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=300)
