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
    """Train, and show that every device holds the same model at the end of each step."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    data = batches()
    # Each device takes the share of a batch that it computes in the same time as the others; the update is that of one
    # device which had the whole batch.
    trainer = weft.Trainer(net, optimizer, nn.CrossEntropyLoss(), devices())
    history = trainer.fit(data, data, epochs=EPOCHS)
    print(f"accuracy {history[-1]['test_acc']:.2f} after {EPOCHS} epochs")


if __name__ == "__main__":
    main()
