"""Train the language model with plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import loop
import torch
from model import TransformerModel
from torch import Tensor, nn


class TorchTrainer:
    """Forward, loss, backward, clipping and update, one call each."""

    def __init__(self, model: nn.Module, words: int) -> None:
        self.model, self.words = model, words
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(model.parameters(), lr=loop.RATE)

    def step(self, source: Tensor, target: Tensor, rate: float) -> float:
        """Train on a batch; gives its loss."""
        self.model.train()
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.zero_grad()
        output = self.model(source)
        loss = self.criterion(output.view(-1, self.words), target)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), loop.CLIP)
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self, source: Tensor, target: Tensor) -> float:
        """The loss of a batch, nothing dropped out."""
        self.model.eval()
        return self.criterion(self.model(source).view(-1, self.words), target).item()


def main(given: Sequence[str] | None = None) -> loop.History:
    args = loop.arguments(__doc__, given)
    corpus = loop.start(args)
    words = len(corpus.words)
    model = TransformerModel(words, args.width, hidden=args.width, dropout=args.dropout)
    return loop.run(TorchTrainer(model, words), corpus, args)


if __name__ == "__main__":
    main()
