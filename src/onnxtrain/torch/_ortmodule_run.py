"""Running the graphs of a module: sessions, and autograd."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import onnx
import onnxruntime
import torch

from ..errors import DeviceError
from ..graph.contract import RANDOM_INPUT
from ..runtime.session import threads
from ..runtime.session.cores import OtherCores, threads_of
from ..runtime.session.cut_session import share_arena
from ..runtime.session.cutting import MANY_NODES
from ..runtime.session.devices import CPU, Device, open_session, session_options
from ..runtime.session.feeds import on_host
from ..runtime.session.threads import HEAVY, applications
from ..runtime.step.halves import BackwardHalf, ForwardHalf, Vector, vector_of
from ._openmp import TORCH_THREADS
from ._ortmodule_constants import CONVOLUTIONS, Array, lent, with_values
from ._ortmodule_graph import Halves
from ._ortmodule_memory import to_ort, to_torch
from .fallback import ORTModuleDeviceException, ORTModuleONNXModelException
from .refusals import explain

_from_dlpack = torch._C._from_dlpack
_keep_graph = torch._C._autograd._get_current_graph_task_keep_graph
"""Whether the backward pass under way was started with retain_graph=True."""

MANY_NUMBERS = 262_144
"""Numbers of an argument from which on operators without weights are divided among threads."""

SECOND = (
    b"The gradients of an ORTModule are computed in onnxruntime and have no derivative in torch."
)


def device_for(device: torch.device) -> Device:
    """Where onnxruntime has the tensors of a device of torch."""
    if device.type == "cpu":
        return Device("cpu")
    kind = "rocm" if device.type == "cuda" and torch.version.hip else device.type
    try:
        return Device(f"{kind}:{device.index or 0}")
    except DeviceError:
        have = ", ".join(onnxruntime.get_available_providers())
        raise ORTModuleDeviceException(
            f"The tensors are on {str(device)!r}, and this onnxruntime has only {have}. "
            "Move module and inputs to the CPU (.to('cpu')), install a build of onnxruntime for "
            "that device, or allow torch to take over with FALLBACK_UNSUPPORTED_DEVICE."
        ) from None


def providers_for(device: torch.device) -> list[Any]:
    """Execution providers for tensors on a device."""
    target = device_for(device)
    if target.is_host:
        return target.providers
    stream = str(torch.cuda.current_stream(device).cuda_stream)
    options = {"device_id": str(target.id), "user_compute_stream": stream}
    return [(target.provider, options), CPU]


def is_small(forward: onnx.ModelProto, arguments: Collection[str]) -> bool:
    """Whether waking up a second thread takes longer than the products it would help with.

    See `runtime.session.threads`, whose answer it is. Large arguments are worth a second thread
    without any weight: a pass over `MANY_NUMBERS` takes 0.05 ms, and an activation has several.

    Args:
        forward: a graph with inputs of known sizes.
        arguments: which of its inputs are not weights.
    """
    if any(node.op_type in HEAVY for node in forward.graph.node):
        return False
    weights, times = 0, 1
    for value in forward.graph.input:
        tensor = value.type.tensor_type
        shape = [d.dim_value for d in tensor.shape.dim]
        if value.name not in arguments:
            weights += math.prod(shape)
            continue
        indices = tensor.elem_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
        if not indices and math.prod(shape) >= MANY_NUMBERS:
            return False
        times = max(times, applications(shape, indices=indices))
    return threads.is_small(weights, times)


def make_session(
    model: onnx.ModelProto,
    device: torch.device,
    config: Mapping[str, str],
    constants: Mapping[str, Array],
) -> Any:
    """A session for one half; `constants` has those that the model does not have itself."""
    entries = dict(config)
    severity = int(entries.pop("log_severity_level", "3"))
    count = entries.pop("intra_op_num_threads", "")
    pattern = entries.pop("enable_mem_pattern", "1") == "1"
    profile = entries.pop("profile_file_prefix", "")
    options = session_options(
        weights_change=_weights_change(model),
        pattern=pattern,
        threads=int(count) if count else torch.get_num_threads(),
        entries=entries,
    )
    options.log_severity_level = severity
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    if device.type == "cpu":
        share_arena(options)  # what the forward half let go is in the caches: backward uses it
    missing = lent(model)
    if len(model.graph.node) > MANY_NODES:  # each of its pieces would need options of its own
        model = with_values(model, constants)
    elif missing:
        share = onnxruntime.OrtValue.ortvalue_from_numpy
        options.add_external_initializers(missing, [share(constants[name]) for name in missing])
    try:
        session = open_session(model.SerializeToString(), options, providers_for(device))
    except ORTModuleDeviceException:
        raise
    except Exception as error:  # onnxruntime has a class of its own for every kind of failure
        raise ORTModuleONNXModelException(explain(model, error)) from error
    return session


def _weights_change(model: onnx.ModelProto) -> bool:
    """Whether a convolution has other weights than constants.

    The blocked layout of onnxruntime's last level wants constants; without, it only costs.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    return any(
        node.op_type in CONVOLUTIONS and node.input[1] not in constants for node in model.graph.node
    )


def _has_booleans(model: onnx.ModelProto, names: Collection[str]) -> bool:
    """Whether some of a model's outputs are booleans."""
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.output}
    return any(types[name] == onnx.TensorProto.BOOL for name in names)


class Graphs:
    """Sessions of one kind of call, and the order in which they want their values.

    Args:
        halves: the graphs.
        inputs: names of the arguments' tensors.
        tensors: names of the module's tensors.
        outputs: how many tensors the module returns.
        device: where everything is.
        config: settings of the sessions.
    """

    def __init__(
        self,
        halves: Halves,
        inputs: Sequence[str],
        tensors: Sequence[str],
        outputs: Sequence[str],
        device: torch.device,
        config: Mapping[str, str],
    ) -> None:
        self.halves = halves
        input_at = {n: i for i, n in enumerate(inputs)}
        tensor_at = {n: i for i, n in enumerate(tensors)}
        self.forward_session, started = threads_of(
            lambda: make_session(halves.forward, device, config, halves.lent)
        )
        self._forward_cores = OtherCores(started)
        count = self.forward_session.get_session_options().intra_op_num_threads
        self._many_threads = count > 1 and device.type == "cpu"
        self.from_inputs = [input_at[n] for n in halves.feeds if n in input_at]
        self.from_tensors = [tensor_at[n] for n in halves.feeds if n in tensor_at]
        feeds = [inputs[i] for i in self.from_inputs]
        feeds += [tensors[i] for i in self.from_tensors]
        self.draws = RANDOM_INPUT in halves.feeds
        if self.draws:
            feeds.append(RANDOM_INPUT)
        self.count = len(outputs)
        self.is_one = self.count == 1 and not _has_booleans(halves.forward, outputs)
        fetches = [*outputs, *halves.updates, *(s for s in halves.saved if s not in outputs)]
        self._plain = len(outputs) + len(halves.updates)
        self._forward = ForwardHalf(
            self.forward_session, feeds, fetches, device_for(device).ort_device
        )
        self.updated = [tensor_at[b] for b in halves.updates.values()]
        self.differentiable = halves.backward is not None
        if halves.backward is not None:
            self._prepare_backward(halves, device, config)

    def _prepare_backward(
        self,
        halves: Halves,
        device: torch.device,
        config: Mapping[str, str],
    ) -> None:
        assert halves.backward is not None
        backward = halves.backward
        self.backward_session, started = threads_of(
            lambda: make_session(backward, device, config, halves.lent)
        )
        self._backward_cores = OtherCores(started)
        reads, feeds = [i.name for i in halves.backward.graph.input], self._forward.feeds
        gradients = list(dict.fromkeys(halves.gradients.values()))
        self._backward = BackwardHalf(
            self.backward_session,
            self._forward,
            saved=[n for n in reads if n in halves.saved],
            inputs=[n for n in reads if n in feeds and n not in halves.saved],
            seeds=[n for n in halves.seeds if n is not None],
            gradients=gradients,
            device=device_for(device).ort_device,
        )
        self.seeded = [i for i, n in enumerate(halves.seeds) if n is not None]
        self.not_seeded = [i for i, n in enumerate(halves.seeds) if n is None]
        self.saved_outputs = [i for i in self._backward.saved_at if i < self.count]
        self.feed_at, self.for_backward = self._backward.inputs_at, self._backward.keep
        # What has a gradient, as positions among the feeds
        self.wrt_names = list(halves.gradients)
        self.wrt = [feeds.index(n) for n in halves.gradients]
        self._gradient_at = [gradients.index(g) for g in halves.gradients.values()]
        self._views = [(self.wrt_names.index(n), shape) for n, shape in halves.views.items()]

    def drawn(self) -> list[torch.Tensor]:
        """What random operators draw from in this call, from torch's generator; if it `draws`.

        So `torch.manual_seed` makes a run repeatable, and `torch.utils.checkpoint`, which puts the
        generator back, gets the same masks again.
        """
        return [torch.empty(2, dtype=torch.int64).random_()] if self.draws else []

    def feeds(
        self, inputs: Sequence[torch.Tensor], bound: Sequence[Any], drawn: Sequence[torch.Tensor]
    ) -> list[Any]:
        """OrtValues for the forward graph, in its order; `bound` are those of the module."""
        values = [to_ort(inputs[i]) for i in self.from_inputs]
        values += bound
        if drawn:
            values += map(to_ort, drawn)
        return values

    def run_forward(self, feeds: Sequence[Any], outputs: Any, *, save: bool) -> Any:
        """All results of the forward graph, or those that are not saved for backward only.

        They are put into the empty vector `outputs`, which is returned.
        """
        first = None if save else self._plain
        try:
            if not self._many_threads:
                return self._forward.run_values(feeds, outputs, first)
            with _Cores(self._forward_cores):
                return self._forward.run_values(feeds, outputs, first)
        except Exception:
            self._check_labels(feeds)
            raise

    def _check_labels(self, feeds: Sequence[Any]) -> None:
        """If wrong labels made a run fail, name the first; the graph has a guard against them."""
        for name, value in zip(self._forward.feeds, feeds):
            labels, array = self.halves.labels.get(name), on_host(value)
            if labels is not None and array is not None:
                labels.check(array)

    def results(self, outputs: Any) -> tuple[torch.Tensor, ...]:
        """What the module returns, of all that the forward graph gave."""
        return tuple([to_torch(outputs, i) for i in range(self.count)])

    def run_backward(self, vector: Any) -> list[torch.Tensor]:
        """The gradients, in the order of `wrt`; one tensor may be that of several."""
        if self._many_threads:
            with _Cores(self._backward_cores):
                results = self._backward.run(vector)
        else:
            results = self._backward.run(vector)
        tensors: list[torch.Tensor] = results.to_dlpacks(_from_dlpack)
        if len(tensors) != len(self._gradient_at):
            tensors = [tensors[i] for i in self._gradient_at]
        for i, shape in self._views:
            tensors[i] = tensors[i].view(shape)
        return tensors

    def with_seeds(self, saved: Any, grads: Sequence[torch.Tensor], *, again: bool) -> Any:
        """All that the backward graph reads; `again` leaves what was kept as it is."""
        if again:
            saved = vector_of([saved[i] for i in range(len(saved))])
        for i in self.seeded:
            saved.push_back(to_ort(grads[i]))
        return saved

    def update(
        self, outputs: Any, tensors: Sequence[torch.Tensor], counts: Mapping[int, int]
    ) -> None:
        """Write new values of buffers where the module keeps them; if there are any `updated`."""
        with torch.no_grad():
            old = [tensors[i] for i in self.updated]
            new = [to_torch(outputs, self.count + k) for k in range(len(old))]
            for k, i in enumerate(self.updated):
                if i in counts:  # the average over all batches so far
                    new[k] = old[k] + (new[k] - old[k]) / (tensors[counts[i]].item() + 1)
            torch._foreach_copy_(old, new)


class _Cores:
    """For the time of a run, onnxruntime's threads have the cores that are not the caller's."""

    __slots__ = ("_cores",)

    def __init__(self, cores: OtherCores) -> None:
        self._cores = cores

    def __enter__(self) -> None:
        TORCH_THREADS.sleep()
        self._cores.use()

    def __exit__(self, *_: object) -> None:
        TORCH_THREADS.wake()


class _ORTModuleFunction(torch.autograd.Function):
    """Forward in onnxruntime now, backward in onnxruntime when torch asks for it."""

    @staticmethod
    def forward(
        ctx: Any,
        graphs: Graphs,
        feeds: list[Any],
        tensors: list[torch.Tensor],
        outputs: Any,
        *wrt: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Run; all that the graph gives is put into the vector `outputs`."""
        graphs.run_forward(feeds, outputs, save=True)
        # torch is told what is kept so that it notices when someone changes it before backward
        watched = [tensors[i] for i in graphs.feed_at]
        if graphs.is_one:
            results: tuple[torch.Tensor, ...] = (_from_dlpack(outputs.dlpack_at(0)),)
        else:
            results = graphs.results(outputs)
        if graphs.not_seeded:
            ctx.mark_non_differentiable(*[results[i] for i in graphs.not_seeded])
        if graphs.saved_outputs:
            watched += [results[i] for i in graphs.saved_outputs]
        ctx.save_for_backward(*watched)
        ctx.saved = graphs, graphs.for_backward(outputs, feeds)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        _ = ctx.saved_tensors  # raises if they were changed, or released by an earlier backward
        graphs, saved = ctx.saved
        if torch.is_grad_enabled():  # create_graph=True
            with torch.no_grad():
                gradients = graphs.run_backward(graphs.with_seeds(saved, grads, again=True))
            return _refuse_second((None, None, None, None, *gradients))
        if _keep_graph():
            saved = graphs.with_seeds(saved, grads, again=True)
        else:
            ctx.saved = None
            for i in graphs.seeded:
                saved.push_back(to_ort(grads[i]))
        return None, None, None, None, *graphs.run_backward(saved)


def _refuse_second(gradients: Sequence[torch.Tensor | None]) -> Any:
    """Gradients that raise when they are differentiated, where constants would be wrong."""
    refuse = torch._C._functions.DelayedError(SECOND, sum(t is not None for t in gradients))
    marked = iter(refuse(*[t.requires_grad_() for t in gradients if t is not None]))
    return tuple(None if t is None else next(marked) for t in gradients)


# Between autograd and that backward there is a function of torch's that looks for other forms of it
_ORTModuleFunction._backward_cls.apply = _ORTModuleFunction.backward  # type: ignore[attr-defined]
# torch's own `apply` looks through all arguments for functorch's wrappers first, in Python
run_now: Callable[..., Any] = super(torch.autograd.Function, _ORTModuleFunction).apply


class RunAgainForBackward(torch.autograd.Function):
    """Forward as inference; should torch ask for gradients, the graphs for them are made then.

    For modules in eval mode, whose results are rarely differentiated: inference then costs nothing
    more, and gradients are still right. A module of which they are wanted once is not run so again
    (`Cache.is_trained_in_eval_mode`).
    """

    @staticmethod
    def forward(
        ctx: Any, graphs: Graphs, call: Call, *wrt: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        outputs = graphs.run_forward(call.feeds, Vector(), save=False)
        results = graphs.results(outputs)
        ctx.call = call
        ctx.mark_non_differentiable(*[r for r in results if not r.is_floating_point()])
        ctx.save_for_backward(*call.tensors)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        if torch.is_grad_enabled():
            with torch.no_grad():
                gradients = RunAgainForBackward._gradients(ctx, grads)
            return _refuse_second(gradients)
        return RunAgainForBackward._gradients(ctx, grads)

    @staticmethod
    def _gradients(ctx: Any, grads: Sequence[torch.Tensor]) -> Any:
        _ = ctx.saved_tensors
        call: Call = ctx.call
        graphs, feeds, names = call.later()
        if not graphs.differentiable:
            return None, None, *(None for _ in names)
        saved = graphs.for_backward(graphs.run_forward(feeds, Vector(), save=True), feeds)
        vector = graphs.with_seeds(saved, grads, again=False)
        gradients = dict(zip(graphs.wrt_names, graphs.run_backward(vector)))
        return None, None, *(gradients.get(n) for n in names)


class Call:
    """What a call as inference hands to autograd besides the tensors with gradients.

    Attributes:
        feeds: OrtValues for the forward graph.
        tensors: the torch tensors that they share memory with.
        later: makes graphs for the backward pass, what to feed them, and the names of what has
            gradients.
    """

    __slots__ = ("feeds", "later", "tensors")

    def __init__(
        self,
        feeds: list[Any],
        tensors: list[torch.Tensor],
        later: Callable[[], tuple[Graphs, list[Any], list[str]]],
    ) -> None:
        self.feeds, self.tensors, self.later = feeds, tensors, later
