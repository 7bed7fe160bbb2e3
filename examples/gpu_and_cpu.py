"""One training run on a GPU and a CPU together; without a GPU, on two virtual devices of the CPU."""

from __future__ import annotations

import torch
from torch import nn

import weft

SIZE, BATCH, EPOCHS = 512, 64, 4


def devices() -> list[str]:
    """Choose one GPU and the CPU, else two parts of the CPU."""
    if torch.cuda.is_available():
        return ["cuda:0", "cpu:0"]
    print("there is no GPU here: training on cpu:0 and cpu:1, two virtual devices of this CPU")
    return ["cpu:0", "cpu:1"]


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Make data that can be learned: which of four corners a noisy point belongs to."""
    labels = torch.arange(SIZE) % 4
    corners = torch.stack([labels % 2, labels // 2], 1) * 2.0 - 1
    points = corners + 0.4 * torch.randn(SIZE, 2)
    return list(zip(points.split(BATCH), labels.split(BATCH), strict=True))


def main() -> None:
    """Train, and say how the batches were shared out in the end."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    data = batches()
    # With measured shares each device takes as much of a batch as it computes in the same time as the others, and one
    # that costs more than it brings is left out; the update is that of one device which had the whole batch.
    trainer = weft.Trainer(net, optimizer, nn.CrossEntropyLoss(), devices(), shares="measured")
    history = trainer.fit(data, data, epochs=EPOCHS)
    whole = sum(trainer.shares)
    parts = [f"{place} {share / whole:.0%}" for place, share in zip(trainer.devices, trainer.shares, strict=True)]
    print(f"accuracy {history[-1]['test_acc']:.2f} after {EPOCHS} epochs; shares in the end: {', '.join(parts)}")


if __name__ == "__main__":
    main()
