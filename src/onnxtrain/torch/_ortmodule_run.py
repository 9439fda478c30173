"""Running the graphs of a module: sessions, memory shared with torch, and autograd.

torch tensors and OrtValues exchange memory through DLPack in both directions; nothing is copied
unless a tensor is not contiguous.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import onnx
import onnxruntime
import torch
from onnxruntime.capi import _pybind_state as ort

from ..errors import DeviceError
from ..graph.contract import RANDOM_INPUT
from ..runtime.session import threads
from ..runtime.session.cores import OtherCores, threads_of
from ..runtime.session.cut_session import share_arena
from ..runtime.session.devices import CPU, Device, open_session, session_options
from ..runtime.session.feeds import on_host
from ..runtime.session.threads import HEAVY, applications
from ..runtime.step.halves import BackwardHalf, ForwardHalf, vector_of
from ._openmp import TORCH_THREADS
from ._ortmodule_constants import CONVOLUTIONS
from ._ortmodule_graph import Halves
from .fallback import ORTModuleDeviceException, ORTModuleONNXModelException
from .refusals import explain

_to_dlpack, _from_dlpack = torch._C._to_dlpack, torch._C._from_dlpack
_from_torch = ort.OrtValue.from_dlpack
_address, _shape = torch.Tensor.data_ptr, operator.attrgetter("shape")

MANY_NUMBERS = 262_144
"""Numbers of an argument from which on operators without weights are divided among threads."""

SECOND = (
    b"The gradients of an ORTModule are computed in onnxruntime and have no derivative in torch."
)


def to_ort(tensor: torch.Tensor) -> Any:
    """An OrtValue in the memory of a tensor, which it keeps alive."""
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    if tensor.dtype is torch.bool:  # DLPack's booleans are not understood
        return _from_torch(_to_dlpack(tensor.view(torch.uint8)), True)
    return _from_torch(_to_dlpack(tensor), False)


def to_torch(values: Any, index: int) -> torch.Tensor:
    """A tensor in the memory of an OrtValue, which it keeps alive."""
    tensor: torch.Tensor = _from_dlpack(values.dlpack_at(index))
    if tensor.dtype is torch.uint8 and values.element_type_at(index) == onnx.TensorProto.BOOL:
        return tensor.view(torch.bool)
    return tensor


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


def make_session(model: onnx.ModelProto, device: torch.device, config: Mapping[str, str]) -> Any:
    """A session for one half."""
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


class Weights:
    """The module's tensors as OrtValues, made once per piece of memory."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self._bound: list[tuple[int, torch.Size, Any]] = [(-1, torch.Size(), None)] * len(
            self.names
        )

    def values(self, tensors: Sequence[torch.Tensor], indices: Sequence[int]) -> list[Any]:
        """OrtValues of the tensors with these numbers.

        What was handed to onnxruntime stays alive here, so memory with the same address is the
        same memory.
        """
        bound, values = self._bound, []
        for i in indices:
            tensor = tensors[i]
            address, shape, value = bound[i]
            if address != tensor.data_ptr() or shape != tensor.shape:
                value = to_ort(tensor)
                same = tensor.is_contiguous()
                bound[i] = (tensor.data_ptr() if same else -1, tensor.shape, value)
            values.append(value)
        return values


class Bound:
    """The module's tensors in the order of one graph, looked through at the speed of C.

    Attributes:
        of: the list of the module's tensors that this was made for.
        tensors: those that the graph reads.
    """

    def __init__(self, of: list[torch.Tensor], indices: Sequence[int], weights: Weights) -> None:
        self.of, self._indices, self._weights = of, indices, weights
        self.tensors = [of[i] for i in indices]
        self._addresses: list[int] = []
        self._shapes: list[torch.Size] = []
        self._values: list[Any] = []

    def values(self) -> list[Any]:
        """OrtValues of the tensors."""
        addresses = list(map(_address, self.tensors))
        shapes = list(map(_shape, self.tensors))
        if addresses != self._addresses or shapes != self._shapes:
            self._values = self._weights.values(self.of, self._indices)
            same = all(t.is_contiguous() for t in self.tensors)  # else copies, made every time
            self._addresses, self._shapes = addresses if same else [], shapes
        return self._values


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
            lambda: make_session(halves.forward, device, config)
        )
        self._forward_cores = OtherCores(started)
        count = self.forward_session.get_session_options().intra_op_num_threads
        self._many_threads = count > 1 and device.type == "cpu"
        self.from_inputs = [input_at[n] for n in halves.feeds if n in input_at]
        self.from_tensors = [tensor_at[n] for n in halves.feeds if n in tensor_at]
        feeds = [inputs[i] for i in self.from_inputs]
        feeds += [tensors[i] for i in self.from_tensors]
        self._draws = RANDOM_INPUT in halves.feeds
        if self._draws:
            feeds.append(RANDOM_INPUT)
        self.count = len(outputs)
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
        self.backward_session, started = threads_of(lambda: make_session(backward, device, config))
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

    def drawn(self) -> list[torch.Tensor]:
        """What random operators draw from in this call, from torch's generator; [] without any.

        So `torch.manual_seed` makes a run repeatable, and `torch.utils.checkpoint`, which puts the
        generator back, gets the same masks again.
        """
        return [torch.empty(2, dtype=torch.int64).random_()] if self._draws else []

    def feeds(
        self, inputs: Sequence[torch.Tensor], bound: Bound, drawn: Sequence[torch.Tensor]
    ) -> list[Any]:
        """OrtValues for the forward graph, in its order."""
        from_user = [to_ort(inputs[i]) for i in self.from_inputs]
        return [*from_user, *bound.values(), *map(to_ort, drawn)]

    def run_forward(self, feeds: Sequence[Any], *, save: bool) -> Any:
        """All results of the forward graph, or those that are not saved for backward only."""
        vector, first = vector_of(feeds), None if save else self._plain
        try:
            if not self._many_threads:
                return self._forward.run(vector, first)
            with _Cores(self._forward_cores):
                return self._forward.run(vector, first)
        except Exception:
            self._check_labels(feeds)
            raise

    def _check_labels(self, feeds: Sequence[Any]) -> None:
        """If wrong labels made a run fail, name the first; the graph has a guard against them."""
        for name, value in zip(self._forward.feeds, feeds):
            labels, array = self.halves.labels.get(name), on_host(value)
            if labels is not None and array is not None:
                labels.check(array)

    def run_backward(self, vector: Any) -> list[torch.Tensor]:
        """The gradients, in the order of `wrt`; one tensor may be that of several."""
        if self._many_threads:
            with _Cores(self._backward_cores):
                results = self._backward.run(vector)
        else:
            results = self._backward.run(vector)
        tensors = list(results.to_dlpacks(_from_dlpack))
        if len(tensors) == len(self._gradient_at):
            return tensors
        return [tensors[i] for i in self._gradient_at]

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
        """Write new values of buffers where the module keeps them."""
        if not self.updated:
            return
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
        ctx: Any, graphs: Graphs, call: Call, *wrt: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        feeds, tensors = call.feeds, call.tensors
        call.outputs = outputs = graphs.run_forward(feeds, save=True)
        results = tuple([to_torch(outputs, i) for i in range(graphs.count)])
        if graphs.not_seeded:
            ctx.mark_non_differentiable(*[results[i] for i in graphs.not_seeded])
        # torch is told what is kept so that it notices when someone changes it before backward
        ctx.save_for_backward(
            *[tensors[i] for i in graphs.feed_at], *[results[i] for i in graphs.saved_outputs]
        )
        ctx.saved = graphs, graphs.for_backward(outputs, feeds)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        _ = ctx.saved_tensors  # raises if they were changed, or released by an earlier backward
        graphs, saved = ctx.saved
        if torch.is_grad_enabled():  # create_graph=True
            with torch.no_grad():
                gradients = graphs.run_backward(graphs.with_seeds(saved, grads, again=True))
            return _refuse_second((None, None, *gradients))
        again = _keep_graph()
        if not again:
            ctx.saved = None
        return None, None, *graphs.run_backward(graphs.with_seeds(saved, grads, again=again))


def _refuse_second(gradients: Sequence[torch.Tensor | None]) -> Any:
    """Gradients that raise when they are differentiated, where constants would be wrong."""
    refuse = torch._C._functions.DelayedError(SECOND, sum(t is not None for t in gradients))
    marked = iter(refuse(*[t.requires_grad_() for t in gradients if t is not None]))
    return tuple(None if t is None else next(marked) for t in gradients)


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
        call.outputs = outputs = graphs.run_forward(call.feeds, save=False)
        results = tuple([to_torch(outputs, i) for i in range(graphs.count)])
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
        assert call.later is not None
        graphs, feeds, names = call.later()
        if not graphs.differentiable:
            return None, None, *(None for _ in names)
        saved = graphs.for_backward(graphs.run_forward(feeds, save=True), feeds)
        vector = graphs.with_seeds(saved, grads, again=False)
        gradients = dict(zip(graphs.wrt_names, graphs.run_backward(vector)))
        return None, None, *(gradients.get(n) for n in names)


def _keep_graph() -> bool:
    """Whether the backward pass under way was started with retain_graph=True."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


class Call:
    """What one call hands to autograd besides the tensors with gradients.

    Attributes:
        feeds: OrtValues for the forward graph.
        tensors: the torch tensors that they share memory with.
        later: makes graphs for the backward pass, what to feed them, and the names of what has
            gradients.
        outputs: all that the forward graph gave.
    """

    __slots__ = ("feeds", "later", "outputs", "tensors")

    def __init__(
        self,
        feeds: list[Any],
        tensors: list[torch.Tensor],
        later: Callable[[], tuple[Graphs, list[Any], list[str]]] | None = None,
    ) -> None:
        self.feeds, self.tensors, self.later = feeds, tensors, later
        self.outputs: Any = None
