"""PyTorch companions of the predecessor: FusedAdam, gradient graphs, trainer checkpoints."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

import onnx
import torch

from ...compile import differentiate
from ...errors import InputError
from ...torch.export import export

PathLike = str | os.PathLike[str]


class AdamWMode(IntEnum):
    """The three forms of `FusedAdam`."""

    ADAM_L2_REGULARIZATION = 0
    ADAMW_TRANSFORMERS = 1
    ADAMW_TORCH = 2


class FusedAdam(torch.optim.Optimizer):
    """Adam over all parameters of a group at once, with PyTorch's multi-tensor functions.

    Args:
        params: parameters or groups.
        lr: learning rate.
        bias_correction: divide the moments by 1 - βᵗ.
        betas: decay of the two moments.
        eps: added to the root.
        adam_w_mode: decay as part of the gradient, after the update scaled by the rate
            (transformers), or before it (torch).
        weight_decay: how much.
        set_grad_none: `zero_grad` drops gradients.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        adam_w_mode: int = AdamWMode.ADAMW_TRANSFORMERS,
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:
        if lr < 0 or eps < 0 or not all(0 <= b < 1 for b in betas):
            raise InputError(f"FusedAdam cannot have lr={lr}, betas={betas}, eps={eps}.")
        self._mode = AdamWMode(adam_w_mode)
        self._set_grad_none = set_grad_none
        defaults = {
            "lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps,
            "weight_decay": weight_decay,
        }  # fmt: skip
        super().__init__(params, defaults)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drop or zero the gradients, by default as `set_grad_none` says."""
        super().zero_grad(self._set_grad_none if set_to_none is None else set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._update(group)
        return loss

    def _update(self, group: dict[str, Any]) -> None:
        weights = [p for p in group["params"] if p.grad is not None]
        if not weights:
            return
        group["step"] = group.get("step", 0) + 1
        for p in weights:
            if not self.state[p]:
                self.state[p]["exp_avg"] = torch.zeros_like(p)
                self.state[p]["exp_avg_sq"] = torch.zeros_like(p)
        first = [self.state[p]["exp_avg"] for p in weights]
        second = [self.state[p]["exp_avg_sq"] for p in weights]
        gradients = [p.grad for p in weights]
        rate, decay, (b1, b2) = group["lr"], group["weight_decay"], group["betas"]
        c1, c2 = 1.0, 1.0
        if group["bias_correction"]:
            c1, c2 = 1 - b1 ** group["step"], 1 - b2 ** group["step"]
        if decay and self._mode is AdamWMode.ADAM_L2_REGULARIZATION:
            gradients = list(torch._foreach_add(gradients, weights, alpha=decay))
        if decay and self._mode is AdamWMode.ADAMW_TORCH:
            torch._foreach_mul_(weights, 1 - rate * decay)
        torch._foreach_lerp_(first, gradients, 1 - b1)
        torch._foreach_mul_(second, b2)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - b2)
        roots = list(torch._foreach_sqrt(second))
        if self._mode is not AdamWMode.ADAMW_TRANSFORMERS:  # there epsilon is not corrected
            torch._foreach_div_(roots, math.sqrt(c2))
        scale = math.sqrt(c2) if self._mode is AdamWMode.ADAMW_TRANSFORMERS else 1.0
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_addcdiv_(weights, first, roots, value=-rate * scale / c1)
        if decay and self._mode is AdamWMode.ADAMW_TRANSFORMERS:
            torch._foreach_mul_(weights, 1 - rate * decay)


def FP16_Optimizer(optimizer: Any, **kwargs: Any) -> Any:
    """The optimizer itself: what this replaced were CUDA kernels of DeepSpeed and Apex."""
    return optimizer


def build_torch_cpp_extensions() -> None:
    """Nothing to build: `ORTModule` needs no compiled extensions any more."""
    print("onnxtrain needs no PyTorch extensions; nothing was built.")


def export_gradient_graph(
    model: torch.nn.Module,
    loss_fn: Callable[[Any, Any], Any],
    example_input: torch.Tensor,
    example_labels: torch.Tensor,
    gradient_graph_path: PathLike,
    opset_version: int = 18,
) -> None:
    """Write a model that computes output, loss and the gradient of every trained parameter.

    Inputs: ``input``, ``labels``, then the parameters; outputs: ``output``, ``loss``, then
    ``<parameter>_grad``. The first dimension of input and labels is open.
    """
    exported = export(
        model,
        (example_input, example_labels),
        loss_fn=loss_fn,
        input_names=["input", "labels"],
        output_names=["loss", "output"],
        dynamic_axes={"input": {0: "batch"}, "labels": {0: "batch"}},
        opset=opset_version,
    )
    trained = [n for n, p in model.named_parameters() if p.requires_grad]
    proto = differentiate(exported.model, wrt=trained, of="loss")
    _parameters_to_inputs(proto, [n for n, _ in model.named_parameters()])
    outputs = {o.name: o for o in proto.graph.output}
    order = ["output", "loss", *(f"{n}_grad" for n in trained)]
    del proto.graph.output[:]
    proto.graph.output.extend(outputs[n] for n in order)
    onnx.save(proto, os.fspath(gradient_graph_path))


def _parameters_to_inputs(proto: onnx.ModelProto, names: Iterable[str]) -> None:
    graph = proto.graph
    weights = {t.name: t for t in graph.initializer}
    wanted = [n for n in names if n in weights]
    for name in wanted:
        tensor = weights[name]
        graph.input.append(
            onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
        )
    kept = [t for t in graph.initializer if t.name not in set(wanted)]
    del graph.initializer[:]
    graph.initializer.extend(kept)


# --- checkpoints of the trainer -----------------------------------------------------------------


def experimental_state_dict(ort_trainer: Any, include_optimizer_state: bool = True) -> Any:
    """The trainer's state."""
    return ort_trainer.state_dict()


def experimental_load_state_dict(
    ort_trainer: Any, state_dict: Mapping[str, Any], strict: bool = False
) -> None:
    """Give a trainer a state."""
    ort_trainer.load_state_dict(state_dict, strict=strict)


def experimental_save_checkpoint(
    ort_trainer: Any,
    checkpoint_dir: PathLike,
    checkpoint_prefix: str = "ORT_checkpoint",
    checkpoint_state_dict: Mapping[str, Any] | None = None,
    include_optimizer_state: bool = True,
) -> None:
    """Save a trainer's state, with more of the user's, under a folder."""
    path = Path(checkpoint_dir)
    path.mkdir(parents=True, exist_ok=True)
    ort_trainer.save_checkpoint(
        path / f"{checkpoint_prefix}.ort.pt",
        dict(checkpoint_state_dict or {}),
        include_optimizer_state,
    )


def experimental_load_checkpoint(
    ort_trainer: Any,
    checkpoint_dir: PathLike,
    checkpoint_prefix: str = "ORT_checkpoint",
    strict: bool = False,
) -> Any:
    """Load what `experimental_save_checkpoint` wrote; gives the user's part."""
    path = Path(checkpoint_dir) / f"{checkpoint_prefix}.ort.pt"
    return ort_trainer.load_checkpoint(path, strict=strict)
