"""The graphs of a trainer and the state they share.

A step is gradients (`Module`) and the flat update (`runtime.step.update`), over the same buffers.
If each batch makes an update and there are few weights, it is one graph instead: loss, gradients,
clipping and update in one run (`OneGraphStep`).
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx_ir as ir
import torch

from .... import optim
from ....compile import Plan, eval_model, step_model, training_model
from ....errors import ModelError, StateError, UnreachableError
from ....graph.contract import METADATA
from ....graph.io import to_proto
from ....graph.subgraphs import subgraph_protos
from ....passes import Recompute
from ....passes.draws import draws_from_counter
from ....runtime.session.devices import Device
from ....runtime.state.buffers import TensorStore
from ....runtime.state.checkpoint_state import CheckpointState
from ....runtime.state.training_state import RandomState, TrainingState
from ....runtime.step.engines import one_graph_pays
from ....runtime.step.evaluator import Evaluator
from ....runtime.step.export import export as write_inference
from ....runtime.step.module import Module
from ....runtime.step.one_graph import OneGraphStep
from ....runtime.step.optimizer import attach
from ....runtime.step.update import (
    OptimizerFile,
    SequenceUpdate,
    Update,
    load_optimizer,
    make_update,
)
from ....runtime.step.watched import Watch
from ....torch.gradient_marks import remove_barriers

Array = npt.NDArray[Any]
SCALE_INPUT = "onnxtrain.loss_scale"
SCALED_LOSS = "onnxtrain.scaled_loss"


class Engine:
    """Trains one ONNX model with a loss.

    Args:
        base: the model, weights as initializers, loss among its outputs.
        loss: name of the scalar to minimise.
        outputs: names of the other outputs.
        trainable: the initializers to train; those the loss does not depend on are left out.
        make_optimizer: gives the optimizer for the weights that are trained.
        device: where.
        options: onnxruntime's session options.
        scaled: whether gradients are those of the loss times a scale, given with every batch.
        seed: of the random operators.
        rank: of this process among those that train together, each with random numbers of its own.
        like: an engine of the same model exported with other shapes; its state is shared.
        from_torch: running variances are those of the sample, as torch's.
        recompute: what the backward half computes again instead of keeping it.
        check_finite: raise `NonFiniteError`, and change nothing, when a loss or a gradient is NaN
            or infinite. Whoever trains together with other processes checks the loss for himself.
        alone: whether there are no other processes.
        may_be_one_graph: whether every batch makes an update, so that one graph can do it all.
        barriers: names of the nodes that no gradient passes, see `gradient_marks`.
    """

    def __init__(
        self,
        base: onnx.ModelProto,
        loss: str,
        outputs: Sequence[str],
        trainable: Sequence[str],
        make_optimizer: Callable[[list[str]], optim.Optimizer],
        *,
        device: Device | None = None,
        options: Any = None,
        scaled: bool = False,
        seed: int = 0,
        rank: int = 0,
        like: Engine | None = None,
        from_torch: bool = False,
        recompute: Recompute = None,
        check_finite: bool = False,
        alone: bool = True,
        may_be_one_graph: bool = True,
        barriers: Sequence[str] = (),
    ) -> None:
        self.base, self.loss, self.scaled = base, loss, scaled
        self.check_finite, self._alone = check_finite, alone
        self._may_be_one_graph = may_be_one_graph and alone and not scaled
        self._from_torch, self._recompute = from_torch, recompute
        self._barriers = list(barriers)
        self._make_optimizer, self._options = make_optimizer, options
        self.device = device or Device("cpu")
        self.outputs = [loss, *(o for o in outputs if o != loss)]
        self.trainable = list(trainable)
        self._steps: dict[tuple[str, ...], OneGraphStep] = {}
        self._evaluators: dict[bool, Evaluator] = {}
        self._training = self._step_bytes = self._eval_bytes = b""
        self._module: Module | None = None
        self._update: Update | SequenceUpdate | None = None
        self._build()
        self.state: TrainingState = like.state if like is not None else self._new_state(seed, rank)
        self._watch = Watch(self.state)

    # --- making ----------------------------------------------------------------------------------

    def _build(self) -> None:
        """Find out what can be trained, and build the graph that trains it."""
        self._steps.clear()
        self._evaluators.clear()
        self._eval_bytes, self._module = b"", None
        base = _with_scaled_loss(self.base, self.loss) if self.scaled else self.base
        while True:
            self.plan = Plan(
                base,
                outputs=self.outputs,
                trainable=self.trainable,
                model_outputs=self.outputs[1:],
                of=[SCALED_LOSS] if self.scaled else [],
                unbiased=self._from_torch,
                recompute=self._recompute,
                counter=True,
                labels_are_checked=True,
                no_gradient=self._barriers,
            )
            self._choose_update()
            if not self.trainable:
                warnings.warn(
                    "The model has no weight to train: steps compute its outputs, in inference "
                    "mode, and change nothing.",
                    stacklevel=2,
                )
                model = eval_model(self.plan)
                break
            try:
                model = (
                    step_model(self.plan, self.optimizer)
                    if self.is_one_graph
                    else training_model(self.plan)
                )
                break
            except UnreachableError as error:
                self.trainable = [n for n in self.trainable if n not in error.names]
                if not self.trainable:
                    raise
        self.draws = draws_from_counter(model)
        self._training, self._step_bytes = b"", b""
        if self.is_one_graph:
            self._step_bytes = _bytes(model)
        else:
            self._training = _bytes(model)
        self.inputs = [n for n in self.plan.user_inputs if n != SCALE_INPUT]

    def _choose_update(self) -> None:
        """Make the optimizer of the weights that are trained, and decide how it is run."""
        names = list(self.plan.trainable)
        self.optimizer = self._make_optimizer(names)
        dims = {i.name: list(i.dims) for i in self.base.graph.initializer}
        flat = optim.flat_model(self.optimizer, params=[(n, dims[n]) for n in names])
        self.file: OptimizerFile = load_optimizer(ir.to_proto(flat).SerializeToString())
        sizes = [math.prod(dims[n]) for n in names]
        self.is_one_graph = self._may_be_one_graph and one_graph_pays(self.file, sizes, self.device)

    def _new_state(self, seed: int, rank: int) -> TrainingState:
        values = {i.name: i for i in self.base.graph.initializer}
        arrays = {
            n: onnx.numpy_helper.to_array(values[n])
            for n in (*self.plan.trainable, *self.plan.frozen)
        }
        # the weights of a group side by side: its update then is one run over the vector
        groups = self.optimizer.resolve(self.plan.trainable)
        trainable = {n: arrays[n] for n in self.plan.trainable}
        state = TrainingState(
            TensorStore.from_arrays(trainable, [n for group in groups for n in group.params]),
            TensorStore.from_arrays({n: arrays[n] for n in self.plan.frozen}),
            random=RandomState(seed, rank=rank),
        )
        attach(state, self.file)
        return state

    # --- training --------------------------------------------------------------------------------

    def step(self, values: Sequence[Any], rate: float, fetches: Sequence[str]) -> list[Array]:
        """Loss, gradients and update in one run; gives the outputs asked for."""
        others = list(fetches)
        if self.check_finite and self.loss in others:
            others.remove(self.loss)
        # whether the step is good shows in the loss, which comes first then
        graph = self._step_for((self.loss, *others) if self.check_finite else tuple(fetches))
        graph.memory.learning_rate = rate
        outputs = graph(values)
        if not self.check_finite:
            return outputs
        by_name = dict(zip([self.loss, *others], outputs))
        return [by_name[name] for name in fetches]

    def _step_for(self, fetches: tuple[str, ...]) -> OneGraphStep:
        graph = self._steps.get(fetches)
        state = self.state
        if graph is None:
            source = _with_outputs(self._step_bytes, fetches)
            graph = OneGraphStep(
                source,
                state,
                self.file,
                self.device,
                self._options,
                check_finite=self.check_finite,
            )
            self._steps[fetches] = graph
        if state.write_back != graph.write_back:  # another graph has trained meanwhile
            if state.write_back is not None:
                state.write_back()
            state.write_back = graph.write_back
        graph.memory = state.need_optimizer()
        return graph

    def gradients(self, values: Sequence[Any], *, add: bool, scale: float = 1.0) -> list[Array]:
        """Loss and outputs of one batch; its gradients replace, or add to, those there are."""
        module = self._gradient_module()
        module.gradient_step.overwrite = not add
        inputs = dict(zip(self.inputs, values))
        if self.scaled:
            inputs[SCALE_INPUT] = np.array(scale, np.float32)
        result = module(**inputs)
        return list(result) if isinstance(result, tuple) else [result]

    def _gradient_module(self) -> Module:
        if self._module is None:
            source = self._training or _bytes(training_model(self.plan))
            self._module = Module(
                source,
                CheckpointState.view(self.state),
                device=self.device.name,
                session_options=self._options,
                check_finite=self.check_finite and self._alone,
            )
            self._module.gradient_step.saves_states = self.scaled or self.check_finite
        return self._module

    def gradient_vectors(self) -> list[Array]:
        """The flat buffers that hold all gradients."""
        store = self.state.gradients
        if store is None:
            raise StateError("There are no gradients yet.")
        return [buffer.data for buffer in store.buffers.values()]

    def update(self, rate: float, scale: float = 1.0) -> None:
        """Update every weight, in place, from the gradients there are times `scale`."""
        state, limit = self.state, self.file.clip_norm
        if state.write_back is not None:
            state.write_back()
        if self._update is None:
            self._update = make_update(self.file, state, self.device, self._options)
        memory = state.need_optimizer()
        if limit is not None or self.check_finite:
            checks = self.check_finite
            self._watch.apply(self._update, rate, scale, limit=limit, check_finite=checks)
        else:
            self._update.run(memory.step + 1, rate, scale)
        memory.step += 1
        memory.learning_rate = rate

    def updated(self) -> None:
        """An update was made: the batches before it count."""
        if self._module is not None:
            self._module.gradient_step.updated()

    def discard(self) -> None:
        """Drop the batches since the last update, and what they did to running statistics."""
        if self._module is not None:
            self._module.discard_step()

    # --- evaluation, export ----------------------------------------------------------------------

    def evaluate(self, values: Mapping[str, Any], fetches: Sequence[str]) -> list[Array]:
        """Outputs with Dropout off and running statistics in use."""
        with_loss = self.loss in fetches
        if with_loss not in self._evaluators:
            self._evaluators[with_loss] = Evaluator(
                self._eval(), self.state, self.device, with_loss=with_loss, options=self._options
            )
        evaluator = self._evaluators[with_loss]
        feeds = [values[n] for n in evaluator.user.input_names]
        by_name = dict(zip(evaluator.user.output_names, evaluator(feeds)))
        return [by_name[n] for n in fetches]

    def eval_inputs(self, with_loss: bool) -> list[str]:
        """Inputs that the predictions, or the loss too, depend on."""
        if with_loss:
            return self.inputs
        producers = {o: n for n in self.base.graph.node for o in n.output}
        waiting, seen = list(self.outputs[1:]), set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in producers:
                waiting += _reads(producers[name])
        return [n for n in self.inputs if n in seen]

    def save_onnx(self, path: Any, outputs: Sequence[str] | None = None) -> None:
        """Write the model with its current weights, in inference mode."""
        self.state.sync()
        write_inference(self._eval(), self.state, path, list(outputs or self.outputs))

    def _eval(self) -> bytes:
        if not self._eval_bytes:
            model = eval_model(self.plan)
            remove_barriers(model, self._barriers)
            self._eval_bytes = _bytes(model)
        return self._eval_bytes

    def write_graphs(self, paths: Mapping[str, str]) -> None:
        """Write graphs for inspection, by the names of `ORTTrainerOptions`.

        In a folder a graph gets the name of its option.
        """
        makers: dict[str, Callable[[], bytes]] = {
            "model_after_graph_transforms_path": self._eval,
            "model_with_gradient_graph_path": lambda: _bytes(training_model(self.plan)),
            "model_with_training_graph_path": self._whole_step,
            "model_with_training_graph_after_optimization_path": self._whole_step,
        }
        for name, target in paths.items():
            if not target:
                continue
            path = Path(target)
            if path.is_dir():
                path /= f"{name.removesuffix('_path')}.onnx"
            path.write_bytes(makers[name]())

    def _whole_step(self) -> bytes:
        """Loss, gradients and update as one graph, whether or not that is what runs."""
        if self.scaled or not self.trainable:
            return self._training
        return self._step_bytes or _bytes(step_model(self.plan, self.optimizer))

    # --- values ----------------------------------------------------------------------------------

    def weights(self) -> dict[str, Array]:
        """Every weight and running statistic that changes: views, by name."""
        self.state.sync()
        return {n: p.data for n, p in CheckpointState.view(self.state).parameters}

    def moments(self) -> dict[str, dict[str, Array]]:
        """The optimizer's states: views, by kind and weight."""
        self.state.sync()
        memory = self.state.need_optimizer()
        return {k: {n: s.view(n) for n in s} for k, s in memory.states.items()}

    @property
    def updates(self) -> int:
        """Number of updates so far."""
        return self.state.need_optimizer().step

    @updates.setter
    def updates(self, count: int) -> None:
        self.state.need_optimizer().step = count

    @property
    def random(self) -> tuple[int, int] | None:
        """Seed and number of batches, from which the masks of Dropout follow; None without any."""
        random = self.state.random
        return (random.seed, random.counter) if self.draws else None

    @random.setter
    def random(self, numbers: tuple[int, int]) -> None:
        self.state.random.seed, self.state.random.counter = numbers

    def constants(self) -> dict[str, onnx.TensorProto]:
        """Initializers that are constants of the graph."""
        changing = {*self.plan.trainable, *self.plan.frozen}
        return {i.name: i for i in self.base.graph.initializer if i.name not in changing}

    def set_constants(self, values: Mapping[str, Array]) -> None:
        """Change constants of the graph; those that differ make it necessary to build it again."""
        known, changed = self.constants(), False
        for name, value in values.items():
            old = onnx.numpy_helper.to_array(known[name])
            if not np.array_equal(old, value):
                known[name].CopyFrom(onnx.numpy_helper.from_array(value.astype(old.dtype), name))
                changed = True
        if changed:
            self.state.sync()
            self._build()


def as_array(value: Any) -> Any:
    """A tensor as an array that shares its memory; anything else as it is."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        return (value if value.device.type == "cpu" else value.cpu()).contiguous().numpy()
    return value


def _bytes(model: ir.Model) -> bytes:
    return bytes(to_proto(model).SerializeToString())


def _reads(node: onnx.NodeProto) -> list[str]:
    """Everything a node depends on, what its subgraphs take from outside included."""
    names = list(node.input)
    for graph in subgraph_protos(node):
        names += [name for inner in graph.node for name in _reads(inner)]
    return names


def _with_scaled_loss(base: onnx.ModelProto, loss: str) -> onnx.ModelProto:
    """The model with one more output: the loss times a scale that is fed."""
    model = onnx.ModelProto()
    model.CopyFrom(base)
    scalar = onnx.helper.make_tensor_value_info(SCALE_INPUT, onnx.TensorProto.FLOAT, [])
    scaled = onnx.helper.make_tensor_value_info(SCALED_LOSS, onnx.TensorProto.FLOAT, None)
    model.graph.input.append(scalar)
    model.graph.output.append(scaled)
    model.graph.node.append(onnx.helper.make_node("Mul", [loss, SCALE_INPUT], [SCALED_LOSS]))
    return model


def _with_outputs(step: bytes, outputs: Sequence[str]) -> bytes:
    """A step model that gives out these of its user outputs only."""
    model = onnx.load_model_from_string(step)
    entry = next(e for e in model.metadata_props if e.key == METADATA)
    described = json.loads(entry.value)
    if described["user_outputs"] == list(outputs):
        return step
    dropped = set(described["user_outputs"]) - set(outputs)
    remaining = {o.name: o for o in model.graph.output if o.name not in dropped}
    rest = [o for n, o in remaining.items() if n not in outputs]
    ordered = [remaining[n] for n in outputs] + rest
    del model.graph.output[:]
    model.graph.output.extend(ordered)
    described["user_outputs"] = list(outputs)
    entry.value = json.dumps(described)
    return bytes(model.SerializeToString())


def check_loss(model: onnx.ModelProto, name: str) -> None:
    """The loss must be one float."""
    info = next((o for o in model.graph.output if o.name == name), None)
    if info is None:
        known = [o.name for o in model.graph.output]
        raise ModelError(f"The model has no output {name!r} to be the loss; it has {known}.")
    kind = info.type.tensor_type
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
    dims = [d.dim_value if d.HasField("dim_value") else 0 for d in kind.shape.dim]
    scalar = not kind.HasField("shape") or all(d == 1 for d in dims)
    if kind.elem_type not in floats or not scalar:
        raise LossError(
            f"The loss {name!r} must be a single float: the first output of an ONNX model is its "
            f"loss, and this one is of type {kind.elem_type} with dimensions {dims}."
        )


class LossError(ModelError, RuntimeError):
    """An output that is to be minimised is not one float."""
