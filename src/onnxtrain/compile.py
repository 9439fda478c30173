"""The spine: load → normalize → loss → differentiate → passes. Every way in comes through here.

Start to read here. A front end says what it wants in a `Plan`; the compiler makes of it what is
asked for:

- `gradients`: the model with gradients as outputs (`differentiate` is its public face);
- `halves`: a forward and a backward model, around the gradients of the outputs;
- `training_model` and `eval_model`: what artifacts hold;
- `step_model`: loss, gradients and update as one graph.

Each stage takes a model and gives a model. The passes are a list in `passes`.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import onnx
import onnx_ir as ir

from .autodiff import differentiate_model, reachable
from .errors import ModelError, UnknownNameError, model_errors
from .graph import FLOATS, ModelLike, OpBuilder, load, replace_outputs, set_outputs
from .graph import parameters as params
from .graph.contract import RANDOM_INPUT, describe, order_inputs
from .graph.infer import infer_shapes
from .graph.io import clone, deliver
from .graph.labels import ClassLabels, class_labels, guard_labels
from .normalize import MAX_IR, MAX_OPSET, lift_constants, normalize
from .optim import Optimizer, append_update
from .passes import (
    AFTER,
    BEFORE,
    Context,
    Recompute,
    Trace,
    check_recompute,
    delay_weights,
    modes,
    with_rules,
)
from .passes.accumulation import accumulate
from .passes.cleanup import remove_unread_initializers
from .passes.draws import draws_from_counter
from .passes.partition import Partition, partition
from .passes.schedule import schedule
from .preparing import preparing

Unused = Literal["error", "zeros", "leave out"]


@dataclass
class Plan:
    """What is to be trained, and how.

    Attributes:
        model: the model with its loss, weights as initializers. It is loaded once and not changed.
        base_dir: folder of its external data, where the model is a message in memory.
        outputs: names of the outputs to keep, the loss first; by default all of the model's own.
        trainable, frozen: initializers that become inputs; of the first gradients are taken.
        among: of these initializers those are trained too that are by default, see
            `trainable_by_default`. "all" is all, with weights that only the normalized model has
            (the coefficients of a LinearRegressor, say). None: nothing is chosen.
        inputs: graph inputs whose gradients are wanted too.
        of: the outputs whose gradients are taken: by default the first, with `vjp` every one that
            has a gradient. Several without `vjp` are added up.
        vjp: take the gradient of each output of `of` as an input ``<output>_grad``.
        unused: what to do about a name that no output of `of` depends on.
        no_gradient: nodes or operators whose outputs count as constants.
        everything_is_input: turn all initializers into inputs and train none.
        training_mode: see `modes.apply_training_mode`.
        update_statistics: whether running statistics are carried as state, with outputs of their
            own.
        unbiased: keep running variances of the sample, as torch does.
        recompute: what the backward half computes again, see `passes.recompute`.
        counter: let random operators draw from a counter that the caller feeds, see `passes.draws`.
        labels_are_checked: whether who runs the models checks class labels before they are fed, as
            `onnxtrain.runtime` does; otherwise the graphs have a guard against wrong ones.
        model_outputs: outputs of the model before the loss was added.
        trace: gets a record of every stage and pass.
        user_inputs: inputs that are no parameters.
        states: running statistics that training updates.
        parameters: everything that becomes an input, in the model's order.
    """

    model: ModelLike
    base_dir: str = ""
    outputs: Sequence[str] = ()
    trainable: Sequence[str] = ()
    frozen: Sequence[str] = ()
    among: Collection[str] | Literal["all"] | None = None
    inputs: Sequence[str] = ()
    of: Sequence[str] = ()
    vjp: bool = False
    unused: Unused = "error"
    no_gradient: Collection[str] = ()
    everything_is_input: bool = False
    training_mode: str = "preserve"
    update_statistics: bool = True
    unbiased: bool = False
    recompute: Recompute = None
    counter: bool = False
    labels_are_checked: bool = False
    model_outputs: Sequence[str] = ()
    trace: Trace = field(default_factory=Trace)
    user_inputs: list[str] = field(init=False)
    states: list[str] = field(init=False)
    parameters: list[str] = field(init=False)
    built: Gradients | None = field(init=False, default=None, repr=False)

    @model_errors("Reading the model")
    def __post_init__(self) -> None:
        check_recompute(self.recompute)
        self._base = load(self.model, base_dir=self.base_dir)
        self._normal: ir.Model | None = None
        self.outputs = list(self.outputs) or [o.name or "" for o in self._base.graph.outputs]
        if self.among is not None:
            self._choose_among(self.among)
        base = self._base
        modes.apply_training_mode(base, self.training_mode, set(self.trainable))
        known = list(base.graph.initializers)
        for name in (*self.trainable, *self.frozen):
            if name not in known:
                raise UnknownNameError("initializer", name, known)
        if params.LOSS_SCALE in known and params.LOSS_SCALE not in self.frozen:
            raise ModelError(
                "The gradients of this model are multiplied by a loss scale "
                "(onnxtrain.quant.mixed_precision), which only the Optimizer and the Trainer of "
                "onnxtrain.api undo: train it with the artifacts of generate_artifacts."
            )
        statistics = modes.running_statistics(base) if self.update_statistics else []
        self.states = [n for n in statistics if n not in self.trainable]
        chosen = {*self.trainable, *self.frozen, *self.states}
        if self.everything_is_input:
            chosen.update(known)
        self.parameters = [n for n in known if n in chosen]
        self.trainable = [n for n in self.parameters if n in set(self.trainable)]
        self.frozen = [n for n in self.parameters if n not in self.trainable]
        initializers = set(known)
        self.user_inputs = [
            i.name for i in base.graph.inputs if i.name and i.name not in initializers
        ]
        if self.everything_is_input:
            self.user_inputs += self.frozen
            self.frozen = []

    def _choose_among(self, names: Collection[str]) -> None:
        """Find what is trained by default; the normalized model that this takes is used again."""
        model = _normalized(clone(self._base), self.trace)
        of = self.of or ([] if self.vjp else self.outputs[:1])
        if names == "all":
            self._base, names = clone(model), list(model.graph.initializers)
        default = set(trainable_by_default(model, of, self.no_gradient)).intersection(names)
        chosen = default.union(self.trainable).difference(self.frozen)
        self.trainable = [n for n in self._base.graph.initializers if n in chosen]
        self.everything_is_input = self.everything_is_input and not self.trainable
        if self.training_mode == "preserve":  # otherwise nodes are about to change
            self._normal = model

    def load(self) -> ir.Model:
        """A copy of the model, to be changed."""
        return clone(self._base)

    def load_normal(self) -> ir.Model:
        """A copy of the model, normalized, with parameters as inputs."""
        known = () if self._normal is None else self._normal.graph.initializers
        if self._normal is not None and all(n in known for n in self.parameters):
            model = clone(self._normal)
            params.to_inputs(model, self.parameters)
            return model
        model = self.load()
        params.to_inputs(model, self.parameters)
        return _normalized(model, self.trace)

    def labels_of(self, model: ir.Model) -> list[ClassLabels]:
        """What has to be checked of the user's inputs of a model."""
        return [labels for labels in class_labels(model) if labels.input in self.user_inputs]

    def checked(self, labels: Sequence[ClassLabels]) -> list[str]:
        """The inputs that need no guard."""
        return [one.input for one in labels] if self.labels_are_checked else []


@dataclass
class Gradients:
    """A model with gradients as outputs, and where they are.

    Attributes:
        model: outputs of the plan, then gradients, then updated running statistics.
        gradients: from parameters and inputs to the names of their gradients.
        states: from running statistics to the names of the outputs that are their next values.
        seeds: with `vjp`, from outputs to the inputs that are their gradients.
        labels: what has to be checked of class labels before they are fed.
    """

    model: ir.Model
    gradients: dict[str, str]
    states: dict[str, str]
    seeds: dict[str, str]
    labels: list[ClassLabels]

    def copy(self) -> Gradients:
        """The same, with a model of its own."""
        return replace(self, model=self.model.clone())


def differentiate(
    model: ModelLike,
    wrt: Sequence[str] | None = None,
    of: str | Sequence[str] | None = None,
    *,
    vjp: bool = False,
    no_gradient: Collection[str] = (),
    allow_unused: bool = False,
    recompute: Recompute = None,
    output: str | os.PathLike[str] | None = None,
    trace: Trace | None = None,
) -> onnx.ModelProto:
    """Turn a model into one that also computes gradients, with standard operators only.

    Args:
        model: path, bytes, ModelProto or `onnx_ir.Model`. It is not changed.
        wrt: parameters (initializers) or inputs to differentiate with respect to; by default
            every float initializer that the loss depends on, but for running statistics of
            BatchNormalization and single numbers (which are constants of a formula more often).
        of: the scalar to differentiate, by default the first output; with `vjp` any outputs, by
            default all of them.
        vjp: the vector–Jacobian form: the gradient of each output in `of` becomes an input
            `<output>_grad`.
        no_gradient: names of nodes, or operator types, whose outputs count as constants.
        allow_unused: zeros, instead of an error, for what the loss does not depend on.
        recompute: what to compute again in the backward half instead of keeping it, which needs
            less memory and more time: a number of segments, "auto", "cheap", or the names of the
            values to keep. See the guide on memory.
        output: also write the result to this path; above 2 GB the weights go to a file beside it.
        trace: gets one record per stage and pass: its name, nodes before and after, seconds.

    Returns:
        The model with one more output `<name>_grad` per name in `wrt`, in that order.

    Example:
        >>> import numpy as np, onnx.parser, onnxtrain
        >>> model = onnx.parser.parse_model('''
        ...     <ir_version: 8, opset_import: ["": 18]>
        ...     g (float[N] x) => (float loss) { y = Mul(x, x) loss = ReduceSum <keepdims=0> (y) }
        ... ''')
        >>> [o.name for o in onnxtrain.differentiate(model, wrt=["x"]).graph.output]
        ['loss', 'x_grad']
    """
    loaded = _with_constants_lifted(load(model), wrt or ())
    initializers = list(loaded.graph.initializers)
    plan = Plan(
        loaded,
        trainable=[n for n in wrt or () if n in initializers],
        among="all" if wrt is None else None,
        inputs=[n for n in wrt or () if n not in initializers],
        of=_targets(loaded, of, vjp),
        vjp=vjp,
        unused="zeros" if allow_unused else "error",
        no_gradient=no_gradient,
        update_statistics=False,
        recompute=recompute,
        trace=trace if trace is not None else Trace(),
    )
    built = gradients(plan)
    names = {n: built.gradients[n] for n in (plan.trainable if wrt is None else wrt)}
    set_outputs(built.model, [*plan.outputs, *names.values()])
    params.to_initializers(built.model)
    built.model.metadata_props["onnxtrain.gradients"] = json.dumps(names)
    return deliver(built.model, output)


def _with_constants_lifted(model: ir.Model, wrt: Sequence[str]) -> ir.Model:
    """The model, in a form in which all that `wrt` names is an input or an initializer.

    Constant nodes and tensors of branches become initializers; coefficients that are attributes of
    ai.onnx.ml operators get their names when the model is normalized.
    """
    for prepare in (None, lift_constants, normalize):
        prepared = model if prepare is None else prepare(clone(model))
        known = {*prepared.graph.initializers, *(v.name for v in prepared.graph.inputs)}
        if known.issuperset(wrt):
            return prepared
    return model


@model_errors("Building the gradients")
def gradients(plan: Plan) -> Gradients:
    """The model with gradients as outputs; it is built once per plan, and copied."""
    if plan.built is None:
        plan.built = _build_gradients(plan)
    return plan.built.copy()


@preparing("differentiating the model")
def _build_gradients(plan: Plan) -> Gradients:
    """Normalize, differentiate and run the passes: outputs of the plan, gradients, states."""
    model, states = forward(plan)
    plan.no_gradient = _stopped(plan, model)
    of = _differentiated(plan, model)
    wrt = _gradient_names(plan, model, of)
    if len(of) > 1 and not plan.vjp:
        model, of = _sum_of(model, of)
    before = {v.name for v in model.graph.inputs}
    labels = plan.labels_of(model)
    context = Context(wrt, of, plan.no_gradient, plan.recompute, plan.counter, plan.checked(labels))
    for step in BEFORE:
        model = plan.trace.run(step, model, context)
    names: dict[str, str] = {}
    if wrt and of:
        with plan.trace.record("differentiate", model, "appends the backward half") as record:
            model, names = differentiate_model(
                model,
                wrt,
                of,
                vjp=plan.vjp,
                no_gradient=plan.no_gradient,
                allow_unused=plan.unused == "zeros",
            )
            record.ends_with(model)
    seeds = [v.name or "" for v in model.graph.inputs if v.name not in before]
    set_outputs(model, [*plan.outputs, *names.values(), *states.values()])
    context.gradients = list(names.values())
    for step in AFTER:
        model = plan.trace.run(step, model, context)
    set_outputs(model, [*plan.outputs, *names.values(), *states.values()])
    return Gradients(model, names, states, dict(zip(of, seeds)), labels)


def forward(plan: Plan) -> tuple[ir.Model, dict[str, str]]:
    """The plan's model, parameters as inputs, normalized; and its updated running statistics."""
    model = plan.load_normal()
    own = {o.name for o in model.graph.outputs}
    set_outputs(model, plan.outputs)
    states: dict[str, str] = {}
    if plan.states:
        states = modes.expose_statistics(model, plan.states, unbiased=plan.unbiased)
    if states or not set(plan.outputs) <= own:
        model = infer_shapes(model)  # of the nodes that were just added
    return model, states


def vector_jacobian(
    model: ir.Model, wrt: Sequence[str], of: Sequence[str]
) -> tuple[ir.Model, dict[str, str]]:
    """The vector–Jacobian product of a formula: a small normalized model, without other passes."""
    model = with_rules(model, wrt, of, ())
    return differentiate_model(model, wrt, of, vjp=True, allow_unused=True)


def halves(
    plan: Plan, before_cut: Callable[[ir.Model], None] | None = None
) -> tuple[Gradients, Partition | None]:
    """Forward and backward as two models; the forward one also returns what the other needs.

    Args:
        plan: what to differentiate, with `vjp`.
        before_cut: may change the whole model before it is cut.

    Returns:
        The whole, and its halves; None when nothing has a gradient.
    """
    built = gradients(plan)
    if before_cut is not None:
        before_cut(built.model)
    if not built.gradients:
        return built, None
    if plan.recompute is not None:
        schedule(built.model.graph)
    return built, partition(built.model, list(built.seeds.values()), list(built.gradients.values()))


def forward_model(plan: Plan) -> ir.Model:
    """The forward half alone, tidied up."""
    model, states = forward(plan)
    guard_labels(model, plan.checked(plan.labels_of(model)))
    context = Context((), (), plan.no_gradient, None)
    for step in AFTER:
        model = plan.trace.run(step, model, context)
    set_outputs(model, [*plan.outputs, *states.values()])
    return model


@model_errors("Building the eval model")
def eval_model(plan: Plan) -> ir.Model:
    """The forward half with the loss, Dropout and BatchNormalization in inference mode.

    It keeps the opset of the base, because models for inference are made from it again, unless
    that is newer than every onnxruntime from 1.22 on runs, or has operators outside the standard.
    """
    model = plan.load()
    modes.switch_off_training(model)
    params.to_inputs(model, plan.parameters)
    if model.opset_imports.get("", 0) > MAX_OPSET or not _is_standard(model):
        model = delay_weights(normalize(model))
        remove_unread_initializers(model.graph)
    model.ir_version = min(model.ir_version, MAX_IR)
    set_outputs(model, plan.outputs)
    labels = plan.built.labels if plan.built is not None else plan.labels_of(model)
    guard_labels(model, plan.checked(labels))
    order_inputs(model, plan)
    describe(model, plan, "eval", labels, model_outputs=list(plan.model_outputs))
    return model


def _is_standard(model: ir.Model) -> bool:
    known = {"", "ai.onnx", "ai.onnx.ml"}.union(key[0] for key in model.functions)
    return all(node.domain in known for node in model.graph.all_nodes())


@model_errors("Building the training model")
def training_model(plan: Plan, *, accumulating: bool = False) -> ir.Model:
    """The model that `Module` trains with.

    Args:
        plan: what to train.
        accumulating: add gradients up inside the graph, as onnxruntime-training's models do.
    """
    built = _with_plain_names(plan)
    model = built.model
    outputs = {o.name: o for o in model.graph.outputs}
    extra: list[str] = []
    with_gradient = [*plan.trainable, *plan.inputs]
    of_names = [outputs[built.gradients[n]] for n in with_gradient]
    if accumulating:
        extra, of_names = accumulate(model, built.gradients, with_gradient)
    count = len(plan.trainable)
    replace_outputs(
        model,
        [
            *(outputs[n] for n in plan.outputs),
            *of_names[:count],
            *(outputs[n] for n in built.states.values()),
            *of_names[count:],
        ],
    )
    order_inputs(model, plan, extra)
    describe(
        model,
        plan,
        "training",
        built.labels,
        gradients={n: built.gradients[n] for n in plan.trainable},
        states=built.states,
        **_randomness(model),
    )
    return model


@model_errors("Building the step model")
def step_model(plan: Plan, optimizer: Optimizer) -> ir.Model:
    """Loss, gradients and update in one graph.

    Inputs: user inputs and targets, parameters, ``<p>.<state>`` per trainable parameter and state,
    ``learning_rate``, ``step``. Outputs: those of the plan, ``<p>.updated``,
    ``<p>.<state>.updated``, then ``<s>.updated`` for running statistics.
    """
    if not plan.trainable:
        raise ModelError("A step model needs at least one trainable parameter.")
    built = _with_plain_names(plan)
    model = built.model
    outputs = {o.name: o for o in model.graph.outputs}
    extra, updated, description = append_update(model, optimizer, plan.trainable, built.gradients)
    replace_outputs(
        model,
        [
            *(outputs[n] for n in plan.outputs),
            *updated,
            *(outputs[n] for n in built.states.values()),
        ],
    )
    context = Context((), (), plan.no_gradient, None)
    for step in AFTER:
        model = plan.trace.run(step, model, context)
    order_inputs(model, plan, extra)
    describe(
        model,
        plan,
        "step",
        built.labels,
        states=built.states,
        **_randomness(model),
        optimizer=description,
    )
    return model


def _randomness(model: ir.Model) -> dict[str, Any]:
    """What a runtime has to know: the input to feed, and nodes that want a seed of their own."""
    hidden = {"random": RANDOM_INPUT} if draws_from_counter(model) else {}
    return {"random_nodes": modes.random_nodes(model), **hidden}


def trainable_by_default(
    model: ir.Model, of: Sequence[str], no_gradient: Collection[str] = ()
) -> list[str]:
    """What is trained when nobody says: the float initializers that the outputs depend on.

    What no gradient reaches (scales of Resize, say), running statistics, single numbers and what is
    part of a formula stay constants; see `untrained_by_default`. Whoever wants one of them trained
    names it.

    Args:
        model: a normalized model.
        of: outputs, by default all.
        no_gradient: names of nodes, or operators, whose outputs count as constants.
    """
    reasons = untrained_by_default(model, of, no_gradient)
    return [n for n in model.graph.initializers if n not in reasons]


def weights_of(model: ModelLike, of: Sequence[str]) -> list[str]:
    """`trainable_by_default` for a model as it came, which is not changed."""
    return trainable_by_default(normalize(clone(load(model))), of)


NO_FLOATS = "no floating-point numbers"
OF_A_FORMULA = "part of a formula"
STATISTICS = "running statistics of BatchNormalization"
UNREACHABLE = "no differentiable path to an output"
SINGLE = "a single number, taken for a constant"
ADAPTED = "part of the base that adapters are trained on"


def untrained_by_default(
    model: ir.Model, of: Sequence[str], no_gradient: Collection[str] = ()
) -> dict[str, str]:
    """The initializers that stay constants when nobody says, and why; see `trainable_by_default`.

    A tensor without dimensions is the ε, the scale or the exponent of a formula more often than a
    parameter: exporters write those as initializers too. In a model that has nothing else they are
    the parameters.
    """
    statistics = modes.all_statistics(model)
    floats = params.float_initializers(model)
    targets = list(of) or [o.name or "" for o in model.graph.outputs if o.dtype in FLOATS]
    reached = reachable(model, [n for n in floats if n not in statistics], targets, no_gradient)
    is_float, is_reached = set(floats), set(reached)
    adapters = params.adapter_parameters(model)
    reasons = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.dtype not in FLOATS:
            reasons[name] = NO_FLOATS
        elif name not in is_float:
            reasons[name] = OF_A_FORMULA
        elif name in statistics:
            reasons[name] = STATISTICS
        elif name not in is_reached:
            reasons[name] = UNREACHABLE
        elif adapters is not None and name not in adapters:
            reasons[name] = ADAPTED
        elif not tensor.shape.numpy():
            reasons[name] = SINGLE
    if len(reasons) == len(model.graph.initializers):
        return {name: reason for name, reason in reasons.items() if reason != SINGLE}
    return reasons


# -- small steps of the spine ----------------------------------------------------------------------


def _normalized(model: ir.Model, trace: Trace) -> ir.Model:
    with trace.record("normalize", model, "one opset, standard operators, shapes") as record:
        model = normalize(model)
        record.ends_with(model)
    return model


def _targets(model: ir.Model, of: str | Sequence[str] | None, vjp: bool) -> list[str]:
    outputs = [o.name or "" for o in model.graph.outputs]
    if of is None:
        return [] if vjp else outputs[:1]
    targets = [of] if isinstance(of, str) else list(of)
    for name in targets:
        if name not in outputs:
            raise UnknownNameError("output", name, outputs)
    if len(targets) != 1 and not vjp:
        raise ModelError("One scalar output can be differentiated; for several pass `vjp=True`.")
    return targets


def _differentiated(plan: Plan, model: ir.Model) -> list[str]:
    """The outputs whose gradients are taken."""
    if not plan.vjp:
        return list(plan.of or plan.outputs[:1])
    floats = [o.name or "" for o in model.graph.outputs if o.dtype in FLOATS]
    chosen = list(plan.of) or [n for n in floats if n in set(plan.outputs)]
    if plan.unused == "error" or (plan.of and plan.unused == "zeros"):
        return chosen
    wrt = _present(plan, model)
    reached = [n for n in chosen if n in floats and reachable(model, wrt, [n], plan.no_gradient)]
    # Somebody who asked for zeros gets them also where nothing depends on anything.
    return reached or (chosen if plan.unused == "zeros" else [])


def _present(plan: Plan, model: ir.Model) -> list[str]:
    known = {v.name for v in model.graph.inputs}
    names = [*plan.trainable, *plan.inputs]
    return names if plan.unused == "error" else [n for n in names if n in known]


def _gradient_names(plan: Plan, model: ir.Model, of: Sequence[str]) -> list[str]:
    """The names whose gradients are taken."""
    names = _present(plan, model)
    if plan.unused == "leave out":
        return reachable(model, names, of, plan.no_gradient) if of else []
    return names


def _stopped(plan: Plan, model: ir.Model) -> list[str]:
    """Names of the nodes whose outputs count as constants; they get one where they have none.

    Operators become the nodes that the model has of them: a pass writes some operators as others,
    and those are not meant.
    """
    chosen = set(plan.no_gradient)
    nodes = list(model.graph.all_nodes())
    count, names = Counter(n.name for n in nodes), []
    for index, node in enumerate(nodes):
        is_chosen = node.op_type in chosen or node.name in chosen
        if not is_chosen and not (node.name or "").startswith(params.STOP_GRADIENT):
            continue
        if not node.name or count[node.name] > 1:
            node.name = f"onnxtrain.stop_{index}"
        names.append(node.name)
    return names


def _sum_of(model: ir.Model, names: Sequence[str]) -> tuple[ir.Model, list[str]]:
    """Several outputs, added up to one scalar."""
    values = {o.name: o for node in model.graph for o in node.outputs}
    op = OpBuilder.on(model)
    op.scope = "onnxtrain.total_loss"
    total = op.Sum(*(op.ReduceSum(op.tensor(values[n]), keepdims=0) for n in names))
    op.attach(model.graph)
    return infer_shapes(model), [total.name]


def _with_plain_names(plan: Plan) -> Gradients:
    """The gradients under the names that a device looks for."""
    built = gradients(plan)
    for name, gradient in built.gradients.items():
        if gradient != f"{name}_grad":
            raise ModelError(
                f"The name {name + '_grad'!r} is taken in the model, and the gradient of {name!r} "
                "must have it. Rename the value."
            )
    return built
