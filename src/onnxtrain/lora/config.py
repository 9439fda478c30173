"""What an adapter is: its settings, and what a model that has one says about it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir

from ..errors import AdapterError
from ..graph.parameters import ADAPTERS
from ..hyper import check_amount

VERSION = 1


@dataclass(frozen=True)
class Config:
    """The settings of an adapter; the names are those of PEFT.

    Attributes:
        rank: of the update of each weight.
        alpha: what the update is multiplied by, before it is divided by the rank.
        dropout: share of an adapted layer's inputs that its adapter does not see while training.
        use_rslora: divide by the root of the rank instead, which keeps large ranks learning.
        use_dora: learn the length of each output's weights apart from their direction.
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    use_rslora: bool = False
    use_dora: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 1:
            raise AdapterError(f"rank is a whole number from 1 on, not {self.rank!r}.")
        check_amount(self.alpha, "alpha", AdapterError)
        check_amount(self.dropout, "dropout", AdapterError)
        if not 0 <= self.dropout < 1:
            raise AdapterError(f"dropout is a share from 0 to below 1, not {self.dropout!r}.")
        if self.use_dora and self.dropout:
            raise AdapterError("use_dora learns the norms of whole weights; set dropout to 0.")

    @property
    def scale(self) -> float:
        """The factor of A·B."""
        return self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)


@dataclass(frozen=True)
class Place:
    """Where a model has the adapter of one layer.

    Attributes:
        layer: name of the layer.
        a, b: names of the parameters.
        magnitude: name of the norms that are learned; "" without `use_dora`.
    """

    layer: str
    a: str
    b: str
    magnitude: str = ""

    @property
    def parameters(self) -> list[str]:
        """What is trained."""
        return [n for n in (self.a, self.b, self.magnitude) if n]


@dataclass(frozen=True)
class Description:
    """What a model with an adapter says about it, in its metadata.

    Attributes:
        config: the settings.
        base: fingerprint of the weights that are adapted.
        places: one for each adapted layer.
        saved: parameters of the model itself that are trained in full.
    """

    config: Config
    base: str
    places: Sequence[Place]
    saved: Sequence[str] = ()

    @property
    def parameters(self) -> list[str]:
        """What is trained."""
        return [*(n for place in self.places for n in place.parameters), *self.saved]

    def write(self, model: ir.Model) -> None:
        """Note it in the model; `parameters` is what the compiler reads."""
        noted = {"version": VERSION, "parameters": self.parameters, **asdict(self)}
        model.metadata_props[ADAPTERS] = json.dumps(noted)


def description_of(metadata: Mapping[str, str]) -> Description | None:
    """What a model says of its adapter; None if it has none.

    Raises:
        AdapterError: it says so in a way that cannot be understood.
    """
    written = metadata.get(ADAPTERS)
    if written is None:
        return None
    try:
        noted = json.loads(written)
        return Description(
            Config(**noted["config"]),
            str(noted["base"]),
            [_place(p) for p in noted["places"]],
            [str(n) for n in noted["saved"]],
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise AdapterError(
            f"The model's metadata {ADAPTERS!r} cannot be read ({error}). Add the adapter to the "
            "base model again."
        ) from error


def _place(noted: Mapping[str, Any]) -> Place:
    layer, a, b, magnitude = (str(noted[key]) for key in ("layer", "a", "b", "magnitude"))
    return Place(layer, a, b, magnitude)
