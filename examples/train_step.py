"""Train a small network on two spirals by whole steps: forward, loss, backward and update are one program."""

import math

import torch
from torch import nn
from torch.nn import functional

import weft

POINTS, BATCH, EPOCHS = 2048, 128, 30


def spirals(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of two arms that wind around each other, and which arm each is of."""
    arm = torch.randint(0, 2, (count,))
    turn = torch.rand(count).sqrt() * 3 * math.pi
    angle = turn + arm * math.pi
    points = torch.stack((angle.cos(), angle.sin()), 1) * turn[:, None] / 6
    return points + 0.05 * torch.randn(count, 2), arm


def main() -> None:
    """Train, with a rate that changes at each step, and print how it goes."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * POINTS // BATCH)
    step = weft.step(net, functional.cross_entropy, optimizer, clip_norm=1.0)
    points, arms = spirals(POINTS)
    for epoch in range(EPOCHS):
        for batch in torch.randperm(POINTS).split(BATCH):
            loss = step(points[batch], arms[batch])
            scheduler.step()
        if epoch % 10 == 9:
            right = (net(points).argmax(1) == arms).float().mean()
            print(f"epoch {epoch + 1}: loss {loss:.3f}, {right:.1%} right")
    print(step)
    print(weft.explain(step))


if __name__ == "__main__":
    main()
