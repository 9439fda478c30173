"""``onnxtrain check``: gradients against finite differences."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from .app import USER_ERROR, common
from .output import UserError, count, current

EPILOG = """\b
Examples:
  onnxtrain check model.onnx
  onnxtrain check model.onnx --wrt fc1.weight --wrt x
  onnxtrain check model.onnx --inputs batch.npz --json

The exit code is 1 when a gradient disagrees.
"""


@click.command(epilog=EPILOG)
@click.argument("model", type=click.Path())
@click.option("--wrt", multiple=True, help="Parameter or input to check; by default all.")
@click.option("--of", multiple=True, help="Output to include; by default all.")
@click.option("--inputs", type=click.Path(), help="npz file with inputs; by default random ones.")
@click.option("--rtol", type=float, default=2e-3, show_default=True, help="Relative tolerance.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of directions and inputs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@common
def command(
    model: str,
    wrt: tuple[str, ...],
    of: tuple[str, ...],
    inputs: str | None,
    rtol: float,
    seed: int,
    as_json: bool,
) -> int:
    """Check the gradient of MODEL against finite differences, per parameter."""
    from ..gradient_check import check_gradient

    report = check_gradient(
        model,
        _arrays(inputs),
        list(wrt) or None,
        list(of) or None,
        rtol=rtol,
        seed=seed,
    )
    screen = current()
    if as_json:
        click.echo(json.dumps({"ok": report.ok, "checks": [asdict(c) for c in report.checks]}))
    else:
        rows = [
            (c.name, "×".join(map(str, c.shape)), f"{c.analytic:.6e}", f"{c.numeric:.6e}",
             f"{c.error:.1e}", "ok" if c.ok else "WRONG")
            for c in report.checks
        ]  # fmt: skip
        head = ("name", "shape", "gradient", "difference", "error", "")
        screen.table("", head, rows, "gradient,difference,error")
        good = sum(c.ok for c in report.checks)
        screen.show(f"{good} of {count(len(rows), 'gradient')} agree with finite differences")
    return 0 if report.ok else USER_ERROR


def _arrays(path: str | None) -> dict[str, object] | None:
    if path is None:
        return None
    from .sources import Named, read

    source = read(path)
    if not isinstance(source, Named):
        raise UserError(f"--inputs takes an .npz file with one array per input, not {path!r}.")
    return dict(source.arrays)
