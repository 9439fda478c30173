"""Add gradients for operators that onnxtrain does not know: your own, or a vendor's.

A rule is a function that builds the gradient of each input out of ONNX operators. It gets the
builder ``op``, the gradient ``dy`` of the output, the output ``y``, the inputs in order (None for
an absent optional one) and the attributes as keyword arguments:

    >>> from onnxtrain import extend
    >>> @extend.gradient("Cube", domain="my.ops")
    ... def cube(op, dy, y, x, *, scale=1.0):
    ...     return dy * (3.0 * scale * x * x)
    >>> extend.is_registered("Cube", domain="my.ops")
    True
    >>> extend.unregister("Cube", domain="my.ops")

Which decorator fits:

- `gradient`: one output; return one gradient per input (None: no gradient), or a bare value
  when only the first input has one.
- `elementwise`: the same for an operator whose inputs broadcast; the gradients are summed to
  each input's shape for you.
- `gradient_multi`: several outputs; ``dy`` and ``y`` are tuples.
- `zero_gradient("Op", ...)`: the derivative is zero, a gradient that arrives is dropped.

`check_gradient` compares the result with finite differences. The operator needs types: give its
outputs a ``value_info`` in the model, because onnx cannot infer shapes of unknown operators.
"""

from .autodiff.registry import elementwise as elementwise
from .autodiff.registry import gradient as gradient
from .autodiff.registry import gradient_multi as gradient_multi
from .autodiff.registry import is_registered as is_registered
from .autodiff.registry import unregister as unregister
from .autodiff.registry import zero_gradient as zero_gradient
from .graph import OpBuilder as OpBuilder
from .graph import Tensor as Tensor
