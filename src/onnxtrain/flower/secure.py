"""Secure aggregation: the server learns the sum of the updates and none of them alone.

Flower's SecAgg+ (`secaggplus_mod` on the clients, `SecAggPlusWorkflow` on the server) speaks
Flower's older message format, in which arrays have no names; the translation is here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.serverapp import Grid, ServerApp

from ..runtime.state.checkpoint_state import CheckpointState
from .client import sent_arrays
from .local import LocalModel
from .records import from_record, to_record

Array = npt.NDArray[Any]
OLD_KEY = "fitins.parameters"
_MODULE = "recorddict_compat"
compat: Any = import_module(
    f"flwr.compat.common.{_MODULE}"
    if find_spec(f"flwr.compat.common.{_MODULE}")
    else f"flwr.common.{_MODULE}"  # where older releases of Flower have it
)


def fit_request(message: Message, model: LocalModel) -> tuple[dict[str, Array], dict[str, Any]]:
    """Arrays and configuration of a training message, in either format."""
    content = message.content
    if OLD_KEY not in content.array_records:
        arrays = from_record(sent_arrays(message), model.arrays())
        return arrays, dict(content.config_records.get("config", {}))
    instructions = compat.recorddict_to_fitins(content, keep_input=True)
    like = model.arrays()
    sent = dict(zip(like, compat.parameters_to_arrayrecord(instructions.parameters, True).values()))
    return from_record(sent, like), dict(instructions.config)


def fit_reply(message: Message, model: LocalModel, metrics: dict[str, Any]) -> Message:
    """The trained arrays, in the format of the request."""
    if OLD_KEY not in message.content.array_records:
        record = RecordDict({"arrays": to_record(model.arrays()), "metrics": MetricRecord(metrics)})
        return Message(record, reply_to=message)
    result = FitRes(
        Status(Code.OK, ""),
        ndarrays_to_parameters(list(model.arrays().values())),
        int(metrics["num-examples"]),
        {"loss": float(metrics["loss"])},
    )
    return Message(compat.fitres_to_recorddict(result, keep_input=False), reply_to=message)


def secure_server_app(
    artifacts: str | os.PathLike[str],
    *,
    rounds: int = 3,
    prefix: str = "",
    num_shares: int | float = 1.0,
    reconstruction_threshold: int | float = 0.5,
    clipping_range: float = 8.0,
    max_weight: float = 1000.0,
    round_timeout: float = 600.0,
    min_nodes: int = 3,
    save: str | os.PathLike[str] | None = None,
    on_arrays: Callable[[dict[str, Array]], object] | None = None,
) -> ServerApp:
    """A ServerApp that averages updates without seeing them (FedAvg under SecAgg+).

    The clients need ``mods=[secaggplus_mod]`` (`flwr.client.mod`). Updates are rounded to
    2·clipping_range/2²² and summed in masked form, so the server cannot look for NaN: each
    client refuses its own, and counts as lost.

    Args:
        artifacts: the folder, the same files as on the clients.
        rounds: how many.
        prefix: of the artifacts' names.
        num_shares: parts into which each secret is cut; 1.0 is one for every client.
        reconstruction_threshold: share of them that is needed, so also of clients that must stay.
        clipping_range: parameters are cut to ± this before rounding.
        max_weight: upper limit of the rows of a client.
        round_timeout: seconds after which each stage goes on without missing clients.
        min_nodes: clients that must be there.
        save: write the final checkpoint here.
        on_arrays: called with the final arrays.
    """
    from flwr.server import LegacyContext, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        model = LocalModel(artifacts, prefix)
        names = list(model.arrays())
        strategy = FedAvg(
            fraction_evaluate=0.0,
            min_fit_clients=min_nodes,
            min_available_clients=min_nodes,
            initial_parameters=ndarrays_to_parameters(list(model.arrays().values())),
        )
        legacy = LegacyContext(
            context=context, config=ServerConfig(num_rounds=rounds), strategy=strategy
        )
        workflow = DefaultWorkflow(
            fit_workflow=SecAggPlusWorkflow(
                num_shares=num_shares,
                reconstruction_threshold=reconstruction_threshold,
                clipping_range=clipping_range,
                max_weight=max_weight,
                timeout=round_timeout,
            )
        )
        workflow(grid, legacy)
        record = legacy.state.array_records["parameters"]
        arrays = parameters_to_ndarrays(compat.arrayrecord_to_parameters(record, keep_input=True))
        model.set_arrays({n: a.astype(np.float32) for n, a in zip(names, arrays)})
        if save is not None:
            CheckpointState.save_checkpoint(model.state, save)
        if on_arrays is not None:
            on_arrays(model.arrays())

    app.main()(main)
    return app
