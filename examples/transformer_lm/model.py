"""The language model: embedding, positions, transformer encoder with a causal mask, decoder."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class PositionalEncoding(nn.Module):
    """Adds sines and cosines of the position, then drops out."""

    def __init__(self, width: int, dropout: float = 0.1, longest: int = 5000) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(longest).unsqueeze(1)
        frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        table = torch.zeros(longest, 1, width)
        table[:, 0, 0::2] = torch.sin(position * frequency)
        table[:, 0, 1::2] = torch.cos(position * frequency)
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        """(length, batch, width) with positions added."""
        return self.dropout(x + self.table[: x.shape[0]])


class TransformerModel(nn.Module):
    """Predicts the next word at every place of a text.

    Args:
        words: size of the vocabulary.
        width: size of the embedding.
        heads: attention heads.
        hidden: width of the feed-forward layers.
        layers: encoder layers.
        dropout: rate, everywhere.
    """

    def __init__(
        self,
        words: int,
        width: int = 200,
        heads: int = 2,
        hidden: int = 200,
        layers: int = 2,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.width = width
        self.encoder = nn.Embedding(words, width)
        self.pos_encoder = PositionalEncoding(width, dropout)
        layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout)
        self.transformer_encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.decoder = nn.Linear(width, words)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, src: Tensor) -> Tensor:
        """Scores (length, batch, words) of the next word, for tokens (length, batch)."""
        length = src.shape[0]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.pos_encoder(self.encoder(src) * math.sqrt(self.width))
        return self.decoder(self.transformer_encoder(x, mask, is_causal=True))
