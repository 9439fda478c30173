"""The one name for both generations of the trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....errors import InputError
from ....runtime.session.sharing import OneProcess


class ORTTrainer(OneProcess):
    """Trains a PyTorch module, or an ONNX model, with its whole step in stock onnxruntime.

    There are two forms, told apart by their arguments. With a dictionary as description::

        ORTTrainer(model, model_desc, optim_config, loss_fn=None, options=None)

    and with description objects and the optimizer's name, as older scripts have it::

        ORTTrainer(model, loss_fn, ModelDescription(…), "SGDOptimizer", None,
                   IODescription("Learning_Rate", [1], torch.float32), device)

    See `ORTTrainerV2` and `ORTTrainerV1` for the arguments of each. Calls from several threads
    follow one another.
    """

    _instead = "Hand over state_dict(), and load it into a new ORTTrainer there."

    def __new__(cls, *args: Any, **kwargs: Any) -> ORTTrainer:
        """An instance of the generation that the arguments belong to."""
        if cls is not ORTTrainer:
            return super().__new__(cls)
        from .descriptions import ModelDescription
        from .trainer_v1 import ORTTrainerV1
        from .trainer_v2 import ORTTrainerV2

        described = [*args[1:3], kwargs.get("model_desc")]
        if any(isinstance(d, ModelDescription) for d in described):
            return super().__new__(ORTTrainerV1)
        dictionary = isinstance(
            kwargs.get("model_desc", args[1] if len(args) > 1 else None), Mapping
        )
        if dictionary or "optim_config" in kwargs:
            return super().__new__(ORTTrainerV2)
        raise InputError(
            "ORTTrainer needs a model description: a dictionary as the second argument, "
            "ORTTrainer(model, model_desc, optim_config, …), or a ModelDescription as the third, "
            "ORTTrainer(model, loss_fn, model_desc, optimizer_name, …)."
        )
