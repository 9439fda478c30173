"""The table of defaults in docs/guides/optimizers.md says what the code does."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch

from onnxtrain import onnxblock, optim
from onnxtrain.runtime.step import kernels
from onnxtrain.torch import optim as orttrainer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "optimizers.md"
NAMES = ("learning rate", "ε", "weight decay", "form", "gradient clipping")


def rows() -> dict[str, dict[str, str]]:
    """First cell of each row → the others by heading."""
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index("| where |") :].partition("\n\n")[0]
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines()]
    assert cells[0] == ["where", *NAMES]
    return {first: dict(zip(NAMES, rest)) for first, *rest in cells[2:]}


def ours(optimizer: optim.Optimizer) -> dict[str, Any]:
    """An optimizer of onnxtrain.optim."""
    decays = [type(t).__name__ for t in optimizer.transforms]
    form = optimizer.hyper.get("form") or ("L2" if decays[0] == "add_decayed_weights" else decays)
    betas = optimizer.hyper.get("betas", [0.9, 0.999])
    assert list(betas) == [0.9, 0.999]
    assert optimizer.hyper.get("momentum", 0) == 0
    return {
        "learning rate": None,
        "ε": optimizer.hyper.get("eps"),
        "weight decay": optimizer.weight_decay,
        "form": form,
        "gradient clipping": optimizer.clip,
    }


def theirs(cls: Callable[..., Any], form: str) -> dict[str, Any]:
    """An optimizer of torch."""
    known = cls([torch.zeros(1, requires_grad=True)]).defaults
    assert tuple(known.get("betas", (0.9, 0.999))) == (0.9, 0.999)
    assert known.get("momentum", 0) == 0
    return {
        "learning rate": known["lr"],
        "ε": known.get("eps"),
        "weight decay": known["weight_decay"],
        "form": form,
        "gradient clipping": None,
    }


def trainers(config: Any) -> dict[str, Any]:
    """A configuration of ORTTrainer."""
    known = config.defaults
    assert (known.get("alpha", 0.9), known.get("beta", 0.999)) == (0.9, 0.999)
    modes = {0: "torch", 1: "huggingface", None: None}
    return {
        "learning rate": known["lr"],
        "ε": known.get("epsilon"),
        "weight decay": known.get("lambda_coef"),
        "form": modes[known.get("weight_decay_mode")],
        "gradient clipping": known.get("max_norm_clip"),
    }


def operator(name: str) -> dict[str, Any]:
    """An operator of the predecessor."""
    optimizer = optim.from_operator(name, {})
    limit = optimizer.clip
    assert limit is None or isinstance(limit, optim.ClipNorm)
    return {**ours(optimizer), "gradient clipping": limit and limit.max_norm}


def fused() -> dict[str, Any]:
    mode = inspect.signature(orttrainer.FusedAdam).parameters["adam_w_mode"].default
    assert mode is orttrainer.AdamWMode.ADAMW_TRANSFORMERS
    return theirs(orttrainer.FusedAdam, "huggingface")


WHERE: dict[str, Callable[[], dict[str, Any]]] = {
    "`torch.optim.AdamW`": lambda: theirs(torch.optim.AdamW, "torch"),
    '`optim.adamw(preset="torch")`': lambda: ours(optim.adamw(preset="torch")),
    "`optim.adamw()`": lambda: ours(optim.adamw()),
    "`onnxblock.optim.AdamW`, `OptimType.AdamW`": lambda: ours(onnxblock.optim.AdamW().optimizer),
    "`torch.AdamConfig` of `ORTTrainer`": lambda: trainers(orttrainer.AdamConfig()),
    "`AdamOptimizer` of `TrainingSession` and `ORTTrainer`": lambda: operator("AdamOptimizer"),
    "`torch.FusedAdam`": fused,
    "`torch.optim.Adam`, `optim.adam()`": lambda: {
        **ours(optim.adam()),
        "learning rate": theirs(torch.optim.Adam, "L2")["learning rate"],
    },
    "`torch.optim.SGD`, `optim.sgd()`": lambda: {
        **ours(optim.sgd()),
        "learning rate": theirs(torch.optim.SGD, "L2")["learning rate"],
    },
    "`onnxblock.optim.SGD`, `OptimType.SGD`": lambda: ours(onnxblock.optim.SGD().optimizer),
    "`torch.SGDConfig` of `ORTTrainer`": lambda: trainers(orttrainer.SGDConfig()),
}


def test_every_row_is_checked() -> None:
    assert set(rows()) == set(WHERE)


@pytest.mark.parametrize("where", WHERE)
def test_the_table_of_defaults(where: str) -> None:
    found, row = WHERE[where](), rows()[where]
    for name in ("learning rate", "ε", "weight decay"):
        said = None if row[name] == "–" else float(row[name])
        assert found[name] == said, name
    assert (found["form"] or "–") == row["form"]
    clip = found["gradient clipping"]
    assert row["gradient clipping"] == ("none" if clip is None else f"norm {clip:g}")


def test_twins_share_a_row() -> None:
    for torch_one, our_one in (
        (theirs(torch.optim.Adam, "L2"), ours(optim.adam())),
        (theirs(torch.optim.SGD, "L2"), ours(optim.sgd())),
    ):
        del torch_one["learning rate"], our_one["learning rate"]
        assert torch_one == our_one


@pytest.mark.parametrize(
    "config", [orttrainer.SGDConfig(), orttrainer.AdamConfig(), orttrainer.LambConfig()]
)
def test_configurations_have_the_operators_defaults(config: Any) -> None:
    known = optim.OPERATORS[config.name]
    assert {**known, **config.hyper_of("any")} == known


def test_every_recipe_has_a_block_and_gives_an_optimizer() -> None:
    for recipe in optim.RECIPES.values():
        block = getattr(onnxblock.optim, recipe.block)
        assert block().optimizer == recipe.make()


def test_a_new_optimizer_is_a_function_and_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxtrain.cli.recipes import make_optimizer, optimizer_names
    from onnxtrain.sklearn import OnnxRegressor

    def signed(weight_decay: float = 0.0, *, clip: Any = None) -> optim.Optimizer:
        links = (optim.scale_by_sign_of_momentum(), optim.scale_by_learning_rate())
        return optim.chain(*links, name="Signed", weight_decay=weight_decay, clip=clip)

    monkeypatch.setitem(optim.RECIPES, "signed", optim.Recipe(signed, "Signed"))
    assert "signed" in optimizer_names()
    assert make_optimizer("signed", clip_norm=1.0) == signed(clip=optim.ClipNorm(1.0))
    block = onnxblock.optim.Signed(clip_grad=onnxblock.optim.ClipGradNorm(1.0))
    assert block.optimizer == signed(clip=optim.ClipNorm(1.0))
    x = np.arange(8, dtype=np.float32).reshape(-1, 1)
    model = OnnxRegressor(hidden_layer_sizes=(2,), optimizer="signed", max_iter=1, random_state=0)
    assert model.fit(x, x[:, 0]).n_iter_ == 1


FORMS: dict[Any, optim.Optimizer] = {
    orttrainer.AdamWMode.ADAM_L2_REGULARIZATION: optim.adam(eps=1e-3, weight_decay=0.01),
    orttrainer.AdamWMode.ADAMW_TRANSFORMERS: optim.adamw(eps=1e-3, weight_decay=0.01),
    orttrainer.AdamWMode.ADAMW_TORCH: optim.adamw(eps=1e-3, weight_decay=0.01, form="torch"),
}


@pytest.mark.parametrize("mode", list(orttrainer.AdamWMode))
def test_fused_adam_is_the_recipe(mode: Any) -> None:
    """PyTorch's kernel does the work there; the formula is the one of `onnxtrain.optim`."""
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 5))
    fused = orttrainer.FusedAdam([weight], 0.1, eps=1e-3, weight_decay=0.01, adam_w_mode=mode)
    model = optim.sequence_model(FORMS[mode], [("w", [5])], 18)
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    params, *states = (
        [value] for value in (weight.detach().numpy().copy(), *np.zeros((2, 5), "f"))
    )
    for step in range(1, 6):
        gradient = np.sin(np.arange(5, dtype=np.float32) * step)
        weight.grad = torch.from_numpy(gradient)
        fused.step()
        fed = [np.array([0.1], "f"), np.array([step]), params, [gradient], *states]
        _, params, *states = session.run(
            None, dict(zip((i.name for i in session.get_inputs()), fed))
        )
    np.testing.assert_allclose(weight.detach().numpy(), params[0], rtol=1e-5)


def test_kernels_are_for_rows_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """That a kernel computes what the graph does is shown in tests/runtime/test_optimizer.py."""
    monkeypatch.setattr(kernels, "available", lambda: True)
    descriptions = {name: optim.describe(r.make()) for name, r in optim.RECIPES.items()}
    fast = {
        n
        for n, d in descriptions.items()
        if kernels.find(d, kernels.COMPILED_PARAMETERS) is not None
    }
    assert fast == {"adam", "adamw", "sgd"}
