"""A small encoder in the manner of BERT, with a head for masked words and one for classes."""

from __future__ import annotations

import math

import torch
from data import PAD
from torch import Tensor, nn
from torch.nn import functional


class Encoder(nn.Module):
    """Embeddings and post-norm transformer layers; padding is not attended to."""

    def __init__(
        self, vocabulary: int, width: int, heads: int, layers: int, length: int, dropout: float
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.register_buffer("numbers", torch.arange(length))
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)
        self.layers = nn.ModuleList([Layer(width, heads, dropout) for _ in range(layers)])
        for table in (self.words, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) → (batch, length, width)."""
        positions = self.positions(self.numbers[: tokens.shape[1]])
        x = self.dropout(self.norm(self.words(tokens) + positions))
        mask = (tokens == PAD)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        return x


class Layer(nn.Module):
    """Attention and feed-forward network, each added and normalized."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.queries, self.keys = nn.Linear(width, width), nn.Linear(width, width)
        self.values, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """`mask` is true where nothing may be read."""
        batch, length, width = x.shape

        def split(t: Tensor) -> Tensor:
            return t.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)

        q, k, v = split(self.queries(x)), split(self.keys(x)), split(self.values(x))
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(width // self.heads)
        weights = scores.masked_fill(mask, -1e4).softmax(-1)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        x = self.norm1(x + self.dropout(self.out(mixed)))
        return self.norm2(x + self.dropout(self.down(functional.gelu(self.up(x)))))


class MaskedWords(nn.Module):
    """For pretraining: the scores of all words at every position; the table of words is shared."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        width = encoder.words.embedding_dim
        self.transform, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.decoder = nn.Linear(width, encoder.words.num_embeddings)
        self.decoder.weight = encoder.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) → (batch, length, vocabulary)."""
        return self.decoder(self.norm(functional.gelu(self.transform(self.encoder(tokens)))))


class Classifier(nn.Module):
    """For fine-tuning: the scores of all classes, read off the first position."""

    def __init__(self, encoder: Encoder, classes: int, dropout: float) -> None:
        super().__init__()
        self.encoder = encoder
        width = encoder.words.embedding_dim
        self.pool, self.dropout = nn.Linear(width, width), nn.Dropout(dropout)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) → (batch, classes)."""
        return self.head(self.dropout(self.pool(self.encoder(tokens)[:, 0]).tanh()))
