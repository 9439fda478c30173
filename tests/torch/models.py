"""Small modules, data and reference optimizers for the trainer's tests."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

WORDS, LENGTH, BATCH = 30, 6, 4


class Tied(nn.Module):
    """Embedding and output layer share their weight; layers of equal values; a buffer."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.hidden = nn.Linear(8, 8)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(8, WORDS, bias=False)
        self.out.weight = self.embed.weight
        self.unused = nn.Linear(2, 2)
        self.register_buffer("scale", torch.full((8,), 1.5))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm1(self.embed(tokens)) * self.scale
        return self.out(self.norm2(self.dropout(self.hidden(x).relu())))


class Net(nn.Module):
    """Two linear layers with normalization in between."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1, self.norm = nn.Linear(5, 16), nn.LayerNorm(16)
        self.dropout, self.fc2 = nn.Dropout(dropout), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.dropout(self.norm(self.fc1(x)).tanh()))


class Statistics(nn.Module):
    """Two BatchNorm layers with equal initial values."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.bn1 = nn.Linear(5, 6), nn.BatchNorm1d(6)
        self.fc2, self.bn2 = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.bn2(self.fc2(self.bn1(self.fc1(x)).relu())).relu())


def batches(count: int, size: int = 12, seed: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of a learnable task for `Net` and `Statistics`."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randn(size, 5, generator=generator)
        yield x, (x[:, :3] + 0.3 * x[:, 2:]).argmax(1)


class Lamb(torch.optim.Optimizer):
    """Lamb as published, written plainly."""

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0, correct=True):
        super().__init__(params, {"lr": lr})
        self.betas, self.eps, self.decay, self.correct = betas, eps, weight_decay, correct

    @torch.no_grad()
    def step(self, closure=None):
        b1, b2 = self.betas
        for group in self.param_groups:
            for p in group["params"]:
                s = self.state[p]
                if not s:
                    s.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                s["t"] += 1
                s["m"] = b1 * s["m"] + (1 - b1) * p.grad
                s["v"] = b2 * s["v"] + (1 - b2) * p.grad**2
                c1, c2 = (1 - b1 ** s["t"], 1 - b2 ** s["t"]) if self.correct else (1.0, 1.0)
                u = (s["m"] / c1) / ((s["v"] / c2).sqrt() + self.eps) + self.decay * p
                of_p, of_u = p.norm(), u.norm()
                ratio = of_p / of_u if of_p > 0 and of_u > 0 else 1.0
                p -= group["lr"] * ratio * u


def train_torch(
    model: nn.Module, optimizer: torch.optim.Optimizer, data, clip: float | None = None
) -> list[float]:
    """Plain PyTorch training; gives the losses."""
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses
