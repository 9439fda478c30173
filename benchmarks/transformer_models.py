"""Transformers as people train them: decoder, vision, rotary with grouped heads; read everywhere.

All write their attention out, so that both sides compute the same.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .torch_models import Encoder


class TokenEncoder(Encoder):
    """The encoder with an answer for every position."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.embed(tokens) + self.position[:, : tokens.shape[1]])
        for block in self.blocks:
            x = block(x)
        return self.head(x).flatten(0, 1)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Heads in the second axis; the result has them side by side again."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    weights = (scores if mask is None else scores + mask).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)


def split_heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def causal_mask(length: int) -> Tensor:
    return torch.triu(torch.full((length, length), float("-inf")), 1)


class PreNormBlock(nn.Module):
    """The block of GPT-2 and ViT: norms in front, queries, keys and values in one product."""

    def __init__(self, width: int, heads: int, approximate: str) -> None:
        super().__init__()
        self.heads, self.approximate = heads, approximate
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (split_heads(t, self.heads) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(attention(q, k, v, mask))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate=self.approximate))


class Decoder(nn.Module):
    """GPT-2: learned positions, Gelu by tanh, the embedding as output layer."""

    def __init__(
        self, vocabulary: int = 8000, width: int = 256, heads: int = 4, layers: int = 4,
        length: int = 64, positions: int = 64,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embed, self.position = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        for table in (self.embed, self.position):  # as GPT-2 begins
            nn.init.normal_(table.weight, std=0.02)
        self.blocks = nn.ModuleList([PreNormBlock(width, heads, "tanh") for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", causal_mask(length))
        self.register_buffer("places", torch.arange(length))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position(self.places)
        for block in self.blocks:
            x = block(x, self.mask)
        return (self.norm(x) @ self.embed.weight.T).flatten(0, 1)


class ViT(nn.Module):
    """Patches, a class token, pre-norm blocks."""

    def __init__(
        self, width: int = 192, heads: int = 3, layers: int = 4, image: int = 112, patch: int = 16,
        classes: int = 10,
    ) -> None:  # fmt: skip
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.ModuleList([PreNormBlock(width, heads, "none") for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class LlamaBlock(nn.Module):
    """RMSNorm, rotary positions, fewer heads for keys and values, SiLU gate."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups = heads, groups
        size = width // heads * groups
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, size, bias=False) for _ in range(2))
        inner = width * 8 // 3
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        h = self.norm1(x)
        q = rotate(split_heads(self.q(h), self.heads), cos, sin)
        k = rotate(split_heads(self.k(h), self.groups), cos, sin)
        times = self.heads // self.groups
        k, v = (t.repeat_interleave(times, 1) for t in (k, split_heads(self.v(h), self.groups)))
        x = x + self.o(attention(q, k, v, mask))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (first half, second half) of each head by the angle of its position."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Llama(nn.Module):
    """A decoder in the shape of Llama."""

    def __init__(
        self, vocabulary: int = 8000, width: int = 256, heads: int = 8, groups: int = 2,
        layers: int = 4, length: int = 64,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([LlamaBlock(width, heads, groups) for _ in range(layers)])
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        half = width // heads // 2
        angles = torch.outer(torch.arange(length), 10000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos().repeat(1, 2))
        self.register_buffer("sin", angles.sin().repeat(1, 2))
        self.register_buffer("mask", causal_mask(length))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin, self.mask)
        return self.head(self.norm(x)).flatten(0, 1)
