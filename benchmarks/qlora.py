"""Adapters on a quantised language model: `python -m benchmarks.qlora [--folder F] [--only POINT]`.

The model has the shape of Qwen3-0.6B (28 layers, width 1024, 151,936 words, 0.6 billion parameters)
and random weights. onnxruntime-genai's builder writes it with weights of 4 or 8 bits; adapters go
beside all linear layers but the last; batch 1, AdamW. The peer is PEFT on the same model in torch,
float32 on the CPU, without recomputation. Each point is a process of its own; memory is the peak of
what was resident, session and weights included, time the median of the steps after the first.

`--again` leaves the preparation out, so that a point is done in half a minute.
`--threads 1` counts processor time too, which other programs on the machine disturb less. Results
go to `benchmarks/qlora.json`, and from there to `docs/guides/lora.md` with `--write`; `--only` runs
some points. The models stay in `--folder` and are used again (5 GB of disk).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "benchmarks" / "qlora.json"
PAGE = ROOT / "docs" / "guides" / "lora.md"
MARK = "<!-- qlora table -->"
SHAPE: dict[str, Any] = {
    "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 4096, "tie_word_embeddings": True,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
POINTS = [
    *(f"int4/{rank}/256" for rank in (8, 32, 128)),
    *(f"int4/8/{context}" for context in (64, 128, 512)),
    "int4-open/8/256",
    *(f"int8/8/{context}" for context in (64, 256)),
    *(f"peft/8/{context}" for context in (64, 128, 256, 512)),
    *(f"peft/{rank}/256" for rank in (32, 128)),
]
"""Who, rank, context. `open`: the lengths are not known when the model is differentiated."""
Step = Callable[[], float]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", default=str(ROOT / ".qlora"), help="where the models are")
    parser.add_argument("--only", nargs="*", default=POINTS, choices=POINTS, metavar="POINT")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--again", action="store_true", help="run with the artifacts that are there"
    )
    parser.add_argument("--write", action="store_true", help="only write the table of the guide")
    parser.add_argument("--work", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        print(json.dumps(work(options.folder, options.threads, *options.work)))
        return 0
    rows = json.loads(STORED.read_text()) if STORED.exists() else {}
    for point in [] if options.write else options.only:
        row = measure(point, options)
        rows.setdefault(point, {})[str(options.threads)] = row
        STORED.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
        print(point, row, flush=True)
    if options.write:
        write_table(rows)
    return 0


def measure(point: str, options: argparse.Namespace) -> dict[str, float]:
    """One point: what it needs is prepared first, in processes of their own."""
    who, rank, context = point.split("/")
    if not options.again:
        call(options, "weights")
    if who != "peft" and not options.again:
        call(options, "base", who.partition("-")[0])
        call(options, "artifacts", who, rank, context)
    return call(options, "run", who, rank, context, options.steps)


def call(options: argparse.Namespace, *task: object) -> dict[str, Any]:
    """One piece of work in a process of its own."""
    common = ["--folder", options.folder, "--threads", str(options.threads)]
    command = [sys.executable, "-m", "benchmarks.qlora", *common, "--work", *map(str, task)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


# --- in the processes ----------------------------------------------------------------------------


def work(folder: str, threads: int, task: str, *arguments: str) -> dict[str, Any]:
    """Make weights, a quantised base or artifacts, or run one contestant."""
    place = Path(folder)
    if task == "weights":
        make_weights(place)
    elif task == "base":
        make_base(place, arguments[0])
    elif task == "artifacts":
        make_artifacts(place, *arguments)
    else:
        who, rank, context, steps = arguments
        maker = torch_step if who == "peft" else our_step
        return timed(maker(place, threads, who, int(rank), int(context)), int(steps))
    return {"peak": peak()}


def timed(step: Step, steps: int) -> dict[str, Any]:
    """Median seconds of the steps after the first with least and most, and GB at the peak."""
    times, processor, loss = [], [], 0.0
    for _ in range(1 + steps):
        began, used = time.perf_counter(), time.process_time()
        loss = step()
        times.append(time.perf_counter() - began)
        processor.append(time.process_time() - used)
    return {
        "seconds": round(statistics.median(times[1:]), 2),
        "least": round(min(times[1:]), 2),
        "most": round(max(times[1:]), 2),
        "processor": round(statistics.median(processor[1:]), 2),
        "peak": peak(),
        "loss": round(loss, 4),
    }


def peak() -> float:
    """GB that were resident at most."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2)


def make_weights(folder: Path) -> None:
    """The model in torch, with random weights, and a tokenizer for the builder."""
    if (folder / "torch" / "tokenizer.json").is_file():
        return
    import torch
    import transformers
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SHAPE))
    model.to(torch.float32).save_pretrained(folder / "torch")
    words = {"<unk>": 0, **{f"w{i}": i for i in range(1, 100)}}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w2")
    fast.save_pretrained(folder / "torch")


def make_base(folder: Path, precision: str) -> None:
    """The model with weights of a few bits, as onnxruntime-genai's builder writes it."""
    target = folder / precision
    if (target / "genai_config.json").is_file():
        return
    importlib.import_module("onnxruntime_genai.models")  # puts the builder's folder on the path
    builder = importlib.import_module("onnxruntime_genai.models.builder")
    place = ("", str(folder / "torch"), str(target), precision, "cpu", str(target / "cache"))
    options = ["accuracy_level=1", "fuse_qkv=false"]
    builder.create_model(*place, **builder.parse_extra_options(*place, options))


def make_artifacts(folder: Path, who: str, rank: str, context: str) -> None:
    """Adapters, loss and optimizer."""
    import onnx

    from onnxtrain import lora, losses, optim
    from onnxtrain.artifacts import generate_artifacts

    precision, _, form = who.partition("-")
    base = folder / precision / "model.onnx"
    model = onnx.load(base, load_external_data=False)
    del model.graph.output[1:]  # the caches
    if form != "open":
        _fix(model, int(context))
        base = base.with_name("fixed.onnx")
        onnx.save(model, base)
    run = folder / f"{who}-{rank}-{context}"
    run.mkdir(exist_ok=True)
    lora.add(base, "all-linear", int(rank), output=run / "adapted.onnx")
    generate_artifacts(
        run / "adapted.onnx",
        loss=losses.CrossEntropyLoss(class_axis=-1),
        optimizer=optim.adamw(),
        loss_input_names=["logits"],
        artifact_directory=run,
    )


def _fix(model: Any, context: int) -> None:
    """Say how long the batch and the sequence are; the caches are empty."""
    sizes = {
        "batch_size": 1, "sequence_length": context, "total_sequence_length": context,
        "past_sequence_length": 0, "kv_cache_dim": SHAPE["head_dim"],
    }  # fmt: skip
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    del model.graph.value_info[:]


def _tokens(context: int) -> Any:
    import numpy as np

    return np.random.default_rng(0).integers(3, SHAPE["vocab_size"], (1, context + 1))


def our_step(folder: Path, threads: int, who: str, rank: int, context: int) -> Step:
    """`Module` and `Optimizer` on the artifacts."""
    import numpy as np
    import onnxruntime

    from onnxtrain.api import CheckpointState, Module, Optimizer

    run = folder / f"{who}-{rank}-{context}"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    state = CheckpointState.load_checkpoint(run / "checkpoint")
    model = Module(run / "training_model.onnx", state, session_options=options)
    optimizer = Optimizer(run / "optimizer_model.onnx", model)
    optimizer.set_learning_rate(1e-4)
    tokens = _tokens(context)
    cache = np.zeros((1, SHAPE["num_key_value_heads"], 0, SHAPE["head_dim"]), np.float32)
    known = {"input_ids": tokens[:, :-1].copy(), "attention_mask": np.ones((1, context), np.int64)}
    labels = tokens[:, 1:].copy()
    batch = [
        cache if name.startswith("past") else known.get(name, labels)
        for name in model.input_names()
    ]

    def step() -> float:
        loss = float(model(*batch))
        optimizer.step()
        model.lazy_reset_grad()
        return loss

    return step


def torch_step(folder: Path, threads: int, who: str, rank: int, context: int) -> Step:
    """PEFT, as its documentation has it."""
    import peft
    import torch
    import transformers

    torch.set_num_threads(threads)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "torch", dtype=torch.float32)
    base.config.use_cache = False
    settings = peft.LoraConfig(
        r=rank, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(base, settings)
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    tokens = torch.from_numpy(_tokens(context))

    def step() -> float:
        logits = model(input_ids=tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits[0], tokens[0, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


# --- the table of the guide -----------------------------------------------------------------------


def write_table(rows: dict[str, Any]) -> None:
    """Put what is stored into the guide, between its two marks."""
    before, _, after = PAGE.read_text().split(MARK)
    PAGE.write_text(f"{before}{MARK}\n{table(rows)}\n{MARK}{after}")


def table(rows: dict[str, Any]) -> str:
    """One line for each rank and context: ours, PEFT's, and their ratio."""
    lines = [
        "| base | rank | context | memory, GB | seconds | PEFT: GB | PEFT: seconds | time ÷ ours |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for point in POINTS:
        who, rank, context = point.split("/")
        for threads, ours in sorted(rows.get(point, {}).items()) if who != "peft" else []:
            peer = rows.get(f"peft/{rank}/{context}", {}).get(threads)
            base = who.replace("-open", ", lengths open")
            cells = [f"{base}, {threads} threads" if threads != "1" else f"{base}, 1 thread"]
            cells += [rank, context, *_cells(ours, threads), *_cells(peer or {}, threads)]
            times = [_time(row, threads) for row in (peer or {}, ours)]
            cells.append(f"{times[0] / times[1]:.2f}" if all(times) else "")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(row: dict[str, float], threads: str) -> list[str]:
    """Memory and time; a point that was disturbed has its memory only."""
    seconds = _time(row, threads)
    spread = f" ({row['least']:.2f}–{row['most']:.2f})" if "least" in row else ""
    return [f"{row['peak']:.1f}" if row else "", f"{seconds:.2f}{spread}" if seconds else ""]


def _time(row: dict[str, float], threads: str) -> float:
    """Processor time where one thread ran; 0 if it is not known."""
    return row.get("processor" if threads == "1" else "seconds", 0.0)


if __name__ == "__main__":
    sys.exit(main())
