"""Train the language model with ORTTrainer: the whole step is one graph in onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence

import loop
import torch
from model import TransformerModel
from torch import Tensor, nn

from onnxtrain.torch import IODescription, ModelDescription, ORTTrainer


class OrtTrainer:
    """`train_step` does forward, loss, backward, clipping and update."""

    def __init__(self, model: nn.Module, words: int) -> None:
        criterion = nn.CrossEntropyLoss()

        def loss_with_flat_output(output: Tensor, target: Tensor) -> Tensor:
            return criterion(output.view(-1, words), target)

        def model_description() -> ModelDescription:
            shape = [loop.BPTT, loop.BATCH]
            source = IODescription("src", shape, torch.int64)
            label = IODescription("label", [loop.BPTT * loop.BATCH], torch.int64)
            loss = IODescription("loss", [], torch.float32)
            output = IODescription("output", [*shape, words], torch.float32)
            return ModelDescription([source, label], [loss, output])

        def learning_rate_description() -> IODescription:
            return IODescription("Learning_Rate", [1], torch.float32)

        def optimizer_attributes(_: str) -> dict[str, float]:
            return {"max_norm_clip": loop.CLIP}

        self.trainer = ORTTrainer(
            model,
            loss_with_flat_output,
            model_description(),
            "SGDOptimizer",
            optimizer_attributes,
            learning_rate_description(),
            torch.device("cpu"),
        )

    def step(self, source: Tensor, target: Tensor, rate: float) -> float:
        """Train on a batch; gives its loss."""
        # The scores of all words are large and not needed here: only the loss is fetched
        loss = self.trainer.train_step(source, target, torch.tensor([rate]), fetches=["loss"])
        return loss.item()

    def evaluate(self, source: Tensor, target: Tensor) -> float:
        """The loss of a batch, nothing dropped out."""
        return self.trainer.eval_step(source, target, fetches=["loss"]).item()


def main(given: Sequence[str] | None = None) -> loop.History:
    args = loop.arguments(__doc__, given)
    corpus = loop.start(args)
    words = len(corpus.words)
    model = TransformerModel(words, args.width, hidden=args.width, dropout=args.dropout)
    return loop.run(OrtTrainer(model, words), corpus, args)


if __name__ == "__main__":
    main()
