"""Loop, Scan and the recurrent operators for `onnx.reference`, whose own are incomplete.

Missing there: directions and axes of Scan; stacking in Loop; activations, clip, input_forget,
linear_before_reset of GRU in reverse, and sequence lengths of the recurrent operators; insertion at
the end of a sequence by position, SequenceMap over several sequences, the content of an optional.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun


class Loop(OpRun):
    body: Any

    def need_context(self) -> bool:
        return True

    def _run(
        self,
        M: Any,
        cond: Any,
        *states: Any,
        context: Any = None,
        body: Any = None,
        attributes: Any = None,
        bindings: Any = None,
    ) -> Any:
        names, results = self.body.input_names, self.body.output_names
        carried = list(states)
        stacks: list[list[Any]] = [[] for _ in range(len(results) - len(names) + 1)]
        step, go_on = 0, True if cond is None else bool(np.asarray(cond).item())
        while go_on and (M is None or step < np.asarray(M).item()):
            feeds = {**(context or {}), names[0]: np.array(step), names[1]: np.array(go_on)}
            feeds.update(zip(names[2:], carried))
            outputs = self.body.run(None, feeds)
            go_on = bool(np.asarray(outputs[0]).item())
            carried = outputs[1 : len(names) - 1]
            for stack, output in zip(stacks, outputs[len(names) - 1 :]):
                stack.append(output)
            step += 1
        stacked = [np.stack(s) if s else np.zeros((0,)) for s in stacks]
        return (*carried, *stacked)


class Scan(OpRun):
    body: Any

    def need_context(self) -> bool:
        return True

    def _run(
        self,
        *args: Any,
        context: Any = None,
        body: Any = None,
        num_scan_inputs: Any = None,
        scan_input_axes: Any = None,
        scan_input_directions: Any = None,
        scan_output_axes: Any = None,
        scan_output_directions: Any = None,
        attributes: Any = None,
        bindings: Any = None,
    ) -> Any:
        names = self.body.input_names
        count = len(args) - num_scan_inputs
        states, slices = list(args[:count]), []
        for i, value in enumerate(args[count:]):
            moved = np.moveaxis(value, (scan_input_axes or [0] * 99)[i], 0)
            slices.append(moved[::-1] if (scan_input_directions or [0] * 99)[i] else moved)
        stacks: list[list[Any]] = [[] for _ in self.body.output_names[count:]]
        for step in range(len(slices[0])):
            feeds = {**(context or {}), **dict(zip(names, states))}
            feeds.update((n, np.asarray(s[step])) for n, s in zip(names[count:], slices))
            outputs = self.body.run(None, feeds)
            states = outputs[:count]
            for stack, output in zip(stacks, outputs[count:]):
                stack.append(output)
        results = []
        for i, stack in enumerate(stacks):
            if (scan_output_directions or [0] * 99)[i]:
                stack.reverse()
            results.append(np.stack(stack, axis=(scan_output_axes or [0] * 99)[i]))
        return (*states, *results)


def activation(name: str, alpha: float | None, beta: float | None) -> Any:
    """An activation of the recurrent operators, with the defaults of its stand-alone operator."""

    def pick(value: float | None, default: float) -> float:
        return default if value is None else value

    table: dict[str, Any] = {
        "Relu": lambda z: np.maximum(z, 0),
        "Tanh": np.tanh,
        "Sigmoid": lambda z: 1 / (1 + np.exp(-z)),
        "Affine": lambda z: pick(alpha, 1.0) * z + pick(beta, 0.0),
        "LeakyRelu": lambda z: np.where(z < 0, pick(alpha, 0.01) * z, z),
        "ThresholdedRelu": lambda z: np.where(z > pick(alpha, 1.0), z, 0),
        "ScaledTanh": lambda z: pick(alpha, 1.0) * np.tanh(pick(beta, 1.0) * z),
        "HardSigmoid": lambda z: np.clip(pick(alpha, 0.2) * z + pick(beta, 0.5), 0, 1),
        "Elu": lambda z: np.where(z < 0, pick(alpha, 1.0) * np.expm1(z), z),
        "Softsign": lambda z: z / (1 + np.abs(z)),
        "Softplus": lambda z: np.log1p(np.exp(z)),
    }
    return table[name]


TAKES = {  # how many of activation_alpha and activation_beta each consumes, in order
    "Affine": (1, 1), "LeakyRelu": (1, 0), "ThresholdedRelu": (1, 0), "ScaledTanh": (1, 1),
    "HardSigmoid": (1, 1), "Elu": (1, 0),
}  # fmt: skip


def activations_of(
    names: Any, default: tuple[str, ...], alphas: Any, betas: Any, dirs: int
) -> list[Any]:
    """The functions of a recurrent operator's attributes, direction after direction."""
    names = list(names or default * dirs)
    alphas, betas, functions = list(alphas or []), list(betas or []), []
    for name in names:
        takes = TAKES.get(name, (0, 0))
        alpha = alphas.pop(0) if takes[0] and alphas else None
        beta = betas.pop(0) if takes[1] and betas else None
        functions.append(activation(name, alpha, beta))
    return functions


class Recurrent(OpRun):
    """One direction after the other, one time step after the other, one sequence at a time."""

    GATES = 1
    DEFAULT: tuple[str, ...] = ("Tanh",)

    def cell(
        self,
        x: Any,
        h: Any,
        c: Any,
        w: Any,
        r: Any,
        wb: Any,
        rb: Any,
        p: Any,
        acts: Any,
        flags: Any,
    ) -> Any:
        raise NotImplementedError

    def _run(self, X: Any, W: Any, R: Any, *optional: Any, **attrs: Any) -> Any:
        absent: tuple[Any, ...] = (None,) * (5 - len(optional))
        B, lens, h0, c0, P = (*optional, *absent)
        layout = attrs.get("layout") or 0
        if layout:
            X = np.swapaxes(X, 0, 1)
            h0 = None if h0 is None else np.swapaxes(h0, 0, 1)
            c0 = None if c0 is None else np.swapaxes(c0, 0, 1)
        T, N, D, H, G = X.shape[0], X.shape[1], W.shape[0], R.shape[2], self.GATES
        B = np.zeros((D, 2 * G * H), X.dtype) if B is None else B
        P = np.zeros((D, 3 * H), X.dtype) if P is None else P
        lens = np.full(N, T) if lens is None else lens
        acts = activations_of(
            attrs.get("activations"),
            self.DEFAULT,
            attrs.get("activation_alpha"),
            attrs.get("activation_beta"),
            D,
        )
        each = len(acts) // D
        Y = np.zeros((T, D, N, H), X.dtype)
        Yh, Yc = np.zeros((D, N, H), X.dtype), np.zeros((D, N, H), X.dtype)
        for d in range(D):
            backwards = attrs.get("direction") == "reverse" or d == 1
            wb, rb = np.split(B[d], 2)
            for n in range(N):
                h = np.zeros(H, X.dtype) if h0 is None else h0[d, n]
                c = np.zeros(H, X.dtype) if c0 is None else c0[d, n]
                steps = range(int(lens[n]))
                for t in reversed(steps) if backwards else steps:
                    h, c = self.cell(
                        X[t, n], h, c, W[d], R[d], wb, rb, P[d],
                        acts[d * each : (d + 1) * each], attrs,
                    )  # fmt: skip
                    Y[t, d, n] = h
                Yh[d, n], Yc[d, n] = h, c
        if layout:
            Y = np.transpose(Y, (2, 0, 1, 3))
            Yh, Yc = np.swapaxes(Yh, 0, 1), np.swapaxes(Yc, 0, 1)
        return (Y, Yh, Yc)[: len(self.onnx_node.output)]

    @staticmethod
    def clipped(z: Any, flags: dict[str, Any]) -> Any:
        limit = flags.get("clip")
        return z if not limit else np.clip(z, -limit, limit)


class RNN(Recurrent):
    def cell(
        self,
        x: Any,
        h: Any,
        c: Any,
        w: Any,
        r: Any,
        wb: Any,
        rb: Any,
        p: Any,
        acts: Any,
        flags: Any,
    ) -> Any:
        return acts[0](self.clipped(w @ x + r @ h + wb + rb, flags)), c


class GRU(RNN):
    GATES = 3
    DEFAULT = ("Sigmoid", "Tanh")

    def cell(
        self,
        x: Any,
        h: Any,
        c: Any,
        w: Any,
        r: Any,
        wb: Any,
        rb: Any,
        p: Any,
        acts: Any,
        flags: Any,
    ) -> Any:
        H, clip = len(h), flags
        from_x, from_h = w @ x + wb, r @ h + rb
        z = acts[0](self.clipped(from_x[:H] + from_h[:H], clip))
        s = acts[0](self.clipped(from_x[H : 2 * H] + from_h[H : 2 * H], clip))
        if flags.get("linear_before_reset"):
            inner = s * from_h[2 * H :]
        else:
            inner = r[2 * H :] @ (s * h) + rb[2 * H :]
        new = acts[1](self.clipped(from_x[2 * H :] + inner, clip))
        return (1 - z) * new + z * h, c


class LSTM(Recurrent):
    GATES = 4
    DEFAULT = ("Sigmoid", "Tanh", "Tanh")

    def cell(
        self,
        x: Any,
        h: Any,
        c: Any,
        w: Any,
        r: Any,
        wb: Any,
        rb: Any,
        p: Any,
        acts: Any,
        flags: Any,
    ) -> Any:
        i, o, f, g = np.split(w @ x + r @ h + wb + rb, 4)
        pi, po, pf = np.split(p, 3)
        i = acts[0](self.clipped(i + pi * c, flags))
        f = 1 - i if flags.get("input_forget") else acts[0](self.clipped(f + pf * c, flags))
        c = f * c + i * acts[1](self.clipped(g, flags))
        o = acts[0](self.clipped(o + po * c, flags))
        return o * acts[2](c), c


class SequenceInsert(OpRun):
    def _run(self, sequence: Any, tensor: Any, position: Any = None) -> Any:
        longer = list(sequence)
        place = len(longer) if position is None else int(np.asarray(position).item())
        longer.insert(place if place >= 0 else place + len(longer), tensor)
        return (longer,)


class SequenceMap(OpRun):
    body: Any

    def need_context(self) -> bool:
        return True

    def _run(
        self, *inputs: Any, body: Any = None, context: Any = None, attributes: Any = None
    ) -> Any:
        results: list[list[Any]] = [[] for _ in self.body.output_names]
        for i in range(len(inputs[0])):
            each = [v[i] if isinstance(v, list) else v for v in inputs]
            feeds = {**(context or {}), **dict(zip(self.body.input_names, each))}
            for scanned, output in zip(results, self.body.run(None, feeds)):
                scanned.append(output)
        return tuple(results)


class OptionalGetElement(OpRun):
    def _run(self, x: Any) -> Any:
        return (x[0] if isinstance(x, list) and len(x) == 1 else x,)


OPS = [
    Loop, Scan, RNN, GRU, LSTM, SequenceInsert, SequenceMap, OptionalGetElement,
]  # fmt: skip
