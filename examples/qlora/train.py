"""A base in four bits learns another kind of text, in adapters: beside the same base in floats."""

from __future__ import annotations

import argparse
import hashlib
import pydoc_data.topics
import sys
import sysconfig
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from model import byte_transformer

from onnxtrain import artifacts, lora, losses, optim, quant
from onnxtrain.api import Trainer

CONTEXT, BATCH = 64, 8


def rows(text: str, count: int, seed: int) -> dict[str, np.ndarray]:
    """Pieces of a text as bytes: what comes next is what is to be told."""
    stored = np.frombuffer(text.encode(), np.uint8)
    starts = np.random.default_rng(seed).integers(0, len(stored) - CONTEXT, count)
    ids = np.stack([stored[s : s + CONTEXT] for s in starts]).astype(np.int64)
    return {"input_ids": ids, "labels": ids}


def manual() -> str:
    """The texts of Python's help, which are part of every Python."""
    return "\n".join(pydoc_data.topics.topics.values())


def source(modules: Sequence[str]) -> str:
    """The source of modules of this Python."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return "\n".join((folder / f"{name}.py").read_text(encoding="utf-8") for name in modules)


def trained(
    model: onnx.ModelProto | Path, folder: Path, data: dict[str, np.ndarray], rate: float
) -> Trainer:
    """Train a model for an epoch; what is trained is adapters, where it has any."""
    folder.mkdir(parents=True, exist_ok=True)
    artifacts.generate_artifacts(
        model,
        loss=losses.CausalLMLoss(),
        optimizer=optim.adamw(clip=optim.ClipNorm(1.0)),
        artifact_directory=folder,
    )
    trainer = Trainer.from_directory(folder, learning_rate=rate, metrics=["perplexity"])
    trainer.fit(data, 1, BATCH, progress=False)
    return trainer


def adapt(base: Path, folder: Path, count: int) -> dict[str, Any]:
    """Train adapters beside all linear layers of a base; runs in a process of its own."""
    idle = memory("VmRSS")
    adapted = lora.add(base, targets="all-linear", rank=8, alpha=16)
    data = rows(source(["argparse", "pathlib", "inspect", "subprocess"]), count, seed=1)
    trainer = trained(adapted, folder, data, 2e-3)
    peak = memory("VmHWM")
    unseen = rows(source(["tempfile", "shutil"]), 200, seed=2)
    adapter = lora.Adapter.of(adapted, trainer.state)
    lora.save_onnx_adapter(adapter, folder / "style.onnx_adapter")
    lora.save_peft(adapter, folder / "peft")
    lora.with_inputs(base, adapter, output=folder / "base.onnx")
    lora.merge(base, adapter, output=folder / "merged.onnx")
    numbers = sum(value.data.size for _, value in trainer.state.parameters)
    after = trainer.evaluate(unseen)["perplexity"]
    return {"after": after, "numbers": numbers, "memory": idle and peak and peak - idle}


def memory(field: str) -> int | None:
    """Bytes that this process has now (VmRSS), or had at most (VmHWM); None outside of Linux."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith(field)]
    return found[0] if found else None


def alone(work: Callable[..., Any], *arguments: Any) -> Any:
    """Work in a fresh process, so that its memory is that of this work alone."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def perplexity(path: Path, data: dict[str, np.ndarray]) -> float:
    """Of the bytes after each first one, by plain onnxruntime."""
    session = onnxruntime.InferenceSession(str(path))
    (scores,) = session.run(None, {"input_ids": data["input_ids"]})
    scores = scores[:, :-1].astype(np.float64)
    chances = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    told = np.take_along_axis(chances, data["labels"][:, 1:, None], -1)
    return float(np.exp(-told.mean()))


def with_adapter(folder: Path, ids: np.ndarray) -> np.ndarray:
    """Scores of the base in four bits, with the adapter that onnxruntime loads itself."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns once for every input that has a default
    session = onnxruntime.InferenceSession(str(folder / "base.onnx"), options)
    style = onnxruntime.LoraAdapter()
    style.Load(str(folder / "style.onnx_adapter"))
    run = onnxruntime.RunOptions()
    run.add_active_adapter(style)
    return np.asarray(session.run(None, {"input_ids": ids}, run)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bits", type=int, default=4, choices=(4, 8))
    parser.add_argument("--output", type=Path, default=Path("qlora"), help="folder for all files")
    parser.add_argument("--quick", action="store_true", help="fewer rows, fewer layers")
    options = parser.parse_args()
    folder: Path = options.output
    layers, learned, count = (1, 240, 160) if options.quick else (2, 1600, 800)

    floats, few = folder / "floats.onnx", folder / f"{options.bits}_bits.onnx"
    base = byte_transformer(512, layers, CONTEXT)
    trained(base, folder / "base", rows(manual(), learned, seed=0), 5e-4).export(floats)
    quant.quantize(floats, bits=options.bits, output=few)
    digest = hashlib.sha256(few.read_bytes()).hexdigest()

    unseen = rows(source(["tempfile", "shutil"]), 200, seed=2)
    print("The base has read Python's manual. Adapted to Python's source:")
    for path in (floats, few):
        run = folder / f"adapted_{path.stem}"
        before = perplexity(path, unseen)
        result = alone(adapt, path, run, count)
        grown = f", {result['memory'] / 1e6:.0f} MB of memory" if result["memory"] else ""
        print(
            f"{path.stem}: {path.stat().st_size / 1e6:.1f} MB on disk{grown}; "
            f"perplexity of unseen source: {before:.2f} → {result['after']:.2f}"
        )
    adapter = run / "style.onnx_adapter"
    print(f"the adapter: {result['numbers']:,} numbers, {adapter.stat().st_size / 1e6:.1f} MB")
    same = digest == hashlib.sha256(few.read_bytes()).hexdigest()
    print(f"the base of {options.bits} bits is the same file as before: {same}")
    merged = onnxruntime.InferenceSession(str(run / "merged.onnx"))
    expected = merged.run(None, {"input_ids": unseen["input_ids"]})[0]
    error = np.abs(with_adapter(run, unseen["input_ids"]) - expected).max()
    print(f"onnxruntime with base and adapter against the merged model: {error:.1e} apart at most")
    print("PyTorch was imported:", "torch" in sys.modules)


if __name__ == "__main__":
    main()
