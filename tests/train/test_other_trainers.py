"""Hybridized models train in Hugging Face's Trainer, in Lightning and with accelerate as imperative ones do.

None of the three is installed for the other tests: `make trainers` runs these where they are.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import weft

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
Y = (X.sum(1) > 0).long()
ROWS = [*zip(X, Y, strict=True)]
ways = pytest.mark.parametrize("way", [lambda net: net, weft.hybridize], ids=["imperative", "hybridized"])
losses: dict[str, float] = {}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        scores = self.body(x)
        return (
            {"logits": scores}
            if labels is None
            else {"loss": functional.cross_entropy(scores, labels), "logits": scores}
        )


def final_loss(net: nn.Module) -> float:
    with torch.no_grad():
        return functional.cross_entropy(net.cpu()(X)["logits"], Y).item()


def agree(name: str, loss: float) -> None:
    """Compare a loss with that of the other way of training."""
    assert loss < 0.6
    assert losses.setdefault(name, loss) == pytest.approx(loss, rel=1e-4)


def test_a_hybridized_module_has_the_signature_of_its_forward() -> None:
    net = weft.hybridize(Net())
    assert inspect.signature(net.forward) == inspect.signature(Net().forward)


@ways
def test_hugging_faces_trainer_trains_a_hybridized_model(way: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    net = way(Net())
    arguments = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, num_train_epochs=8, per_device_train_batch_size=16, learning_rate=0.02, seed=0,
        report_to=[], save_strategy="no", disable_tqdm=True, max_grad_norm=0.0,
    )  # fmt: skip
    rows = [{"x": x, "labels": y} for x, y in ROWS]
    trainer = transformers.Trainer(net, arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(final_loss(net), rel=1e-3)
    agree("transformers", final_loss(net))


@ways
def test_lightning_trains_a_hybridized_model(way: Any) -> None:
    lightning = pytest.importorskip("pytorch_lightning")

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = way(Net())

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            x, y = batch
            return self.net(x, y)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.5)

    made = Lit()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    lightning.Trainer(max_epochs=8, accelerator="cpu", **quiet).fit(made, DataLoader(ROWS, 16))
    agree("lightning", final_loss(made.net))


@ways
def test_accelerate_trains_a_hybridized_model(way: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator, net = accelerate.Accelerator(cpu=True), way(Net())
    net, optimizer, data = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.5), DataLoader(ROWS, 16))
    for _ in range(8):
        for x, y in data:
            optimizer.zero_grad()
            accelerator.backward(net(x, y)["loss"])
            optimizer.step()
    agree("accelerate", final_loss(accelerator.unwrap_model(net)))
