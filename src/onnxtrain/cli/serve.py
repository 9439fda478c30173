"""``onnxtrain serve``: train an artifact directory in the browser, from this machine."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .app import common
from .output import current

if TYPE_CHECKING:
    from ..serve import Site

EPILOG = """\b
Examples:
  onnxtrain serve                       a digits model, to try it
  onnxtrain serve artifacts
  onnxtrain serve runs/model --open     the run of onnxtrain train: goes on from its checkpoint
  onnxtrain serve runs/lm --tokenizer tokenizer.json
  onnxtrain serve artifacts --port 8001 --ort-dir node_modules/onnxruntime-web/dist
"""


@click.command(epilog=EPILOG)
@click.argument("directory", type=click.Path(), required=False)
@click.option("--port", default=8000, show_default=True, help="0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--prefix", default="", help="Of the artifacts' names.")
@click.option(
    "--ort-dir", type=click.Path(), help="The dist directory of another onnxruntime-web (WebGPU)."
)
@click.option(
    "--tokenizer",
    type=click.Path(),
    help="tokenizer.json of a language model, where the directory has none.",
)
@click.option("--open", "open_", is_flag=True, help="Open the page in the browser.")
@common
def command(
    directory: str | None,
    port: int,
    host: str,
    prefix: str,
    ort_dir: str | None,
    tokenizer: str | None,
    open_: bool,
) -> None:
    """Serve a page that trains the artifacts in DIRECTORY in the browser.

    DIRECTORY holds artifacts, or the run of onnxtrain train. Everything comes from this machine and
    stays on it. Stop with Ctrl+C.
    """
    from ..serve import Site

    runtime = None if ort_dir is None else Path(ort_dir)
    tokens = None if tokenizer is None else Path(tokenizer)
    if directory is not None:
        folder = Path(directory)
        if (folder / "artifacts").is_dir() and (folder / "checkpoint").is_file():
            checkpoint, model = folder / "checkpoint", folder / "model.onnx"
            site = Site(folder / "artifacts", "", folder.name, runtime, checkpoint, tokens, model)
        else:
            site = Site(folder, prefix, None, runtime, tokenizer=tokens)
        _serve(site, host, port, open_)
        return
    with tempfile.TemporaryDirectory(prefix="onnxtrain-") as temporary:
        _write_demo(Path(temporary))
        _serve(Site(Path(temporary), "", "Digits demo", runtime), host, port, open_)


def _serve(site: Site, host: str, port: int, open_: bool) -> None:
    from ..serve import Server

    server = Server(site, host, port)
    output = current()
    output.show(server.url)
    if host not in {"127.0.0.1", "::1", "localhost"}:
        output.say(
            f"Everyone who reaches {host} can read these artifacts. Browsers allow threads on "
            "https and localhost only: training elsewhere runs on one."
        )
    output.say("Stop with Ctrl+C.")
    if open_:
        import webbrowser

        webbrowser.open(server.url)
    server.run()


def _write_demo(folder: Path) -> None:
    """Artifacts of the demo's digits network."""
    from .. import optim
    from ..artifacts import LossType, generate_artifacts
    from .demo_model import digits_network

    model = digits_network()
    generate_artifacts(
        model,
        requires_grad=[i.name for i in model.graph.initializer],
        loss=LossType.CrossEntropyLoss,
        optimizer=optim.adamw(),
        artifact_directory=folder,
    )
