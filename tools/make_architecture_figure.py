"""Draw docs/images/architecture.svg: the stages, what they write, and who calls them.

python tools/make_architecture_figure.py            # with a path: there, and as PNG too
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from onnxtrain.drawing.scene import Box, Line, Scene, Text

TARGET = Path(__file__).parent.parent / "docs" / "images" / "architecture.svg"
WIDTH, HEIGHT, MARGIN = 1080, 592, 20
INK, GREY, LINE = "#1f2933", "#52606d", "#7b8794"
FACE, STAGE, FILE, RUN = "#e8f0fe", "#fff4e0", "#f1f3f5", "#e6f5ec"
EDGE = {FACE: "#8fb0e8", STAGE: "#e0b35a", FILE: "#b8c1cc", RUN: "#7fbf9a"}

FRONT_ENDS = (
    ("onnxtrain", ("differentiate", "check_gradient", "summarize")),
    ("artifacts/ · onnxblock/", ("generate_artifacts", "TrainingBlock")),
    ("compat/", ("TrainingSession", "TrainingAgent", "ORTTrainer, …")),
    ("torch/", ("ORTModule",)),
    ("sklearn/", ("OnnxClassifier", "OnnxRegressor")),
    ("cli/", ("the onnxtrain", "command")),
)
STAGES = (
    ("load", "graph/", "any file, checked"),
    ("normalize", "normalize/", "one opset, typed"),
    ("loss", "losses/", "added to the graph"),
    ("differentiate", "autodiff/", "walk + rules"),
    ("passes", "passes/", "two literal lists"),
)
FILES = (
    "training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "step_model.onnx",
    "checkpoint", "device.json",
)  # fmt: skip
PARTS = (
    ("files/", "ONNX and checkpoints", "without protobuf"),
    ("state/", "flat buffers", "CheckpointState"),
    ("session/", "devices, threads", "bindings"),
    ("step/", "Module, Optimizer", "one graph, pieces"),
    ("loop/", "Trainer, callbacks", "metrics, schedules"),
)
USERS = (
    ("api/", ("Module, Optimizer, Trainer",)),
    ("distributed/", ("several processes",)),
    ("flower/", ("federated",)),
    ("serve/ · js/", ("in the browser",)),
)


def figure() -> Scene:
    """The whole picture, from the callers at the top to the users of the runtime."""
    scene = Scene(WIDTH, HEIGHT, "The stages of onnxtrain, and who calls them")
    scene.add(Box(0, 0, WIDTH, HEIGHT, "#ffffff"))
    boxes_in_a_row(scene, 34, 76, FACE, FRONT_ENDS, "who asks")
    down(scene, WIDTH / 2, 112, 136)
    offline(scene, 138)
    down(scene, WIDTH / 2, 276, 300)
    files(scene, 302)
    down(scene, WIDTH / 2, 360, 384)
    runtime(scene, 386)
    up(scene, WIDTH / 2, 500, 522)
    boxes_in_a_row(scene, 536, 46, FACE, USERS, "who runs it")
    return scene


def boxes_in_a_row(
    scene: Scene,
    top: float,
    height: float,
    fill: str,
    boxes: Sequence[tuple[str, Sequence[str]]],
    label: str,
) -> None:
    """Boxes of the same width, each with a title and a few lines."""
    scene.add(Text(MARGIN, top - 8, label, 12, colour=GREY))
    gap = 12
    width = (WIDTH - 2 * MARGIN - gap * (len(boxes) - 1)) / len(boxes)
    for i, (title, lines) in enumerate(boxes):
        left = MARGIN + i * (width + gap)
        scene.add(Box(left, top, width, height, fill, EDGE[fill], 6))
        scene.add(Text(left + width / 2, top + 19, title, 13, "middle", INK, bold=True))
        for k, line in enumerate(lines):
            scene.add(Text(left + width / 2, top + 37 + 15 * k, line, 11.5, "middle", GREY))


def chain(
    scene: Scene, top: float, left: float, fill: str, boxes: Sequence[tuple[str, str, str]]
) -> None:
    """Boxes with arrows from each to the next; from `left` to the right margin."""
    gap = 26
    width = (WIDTH - MARGIN - 14 - left - gap * (len(boxes) - 1)) / len(boxes)
    for i, (title, second, third) in enumerate(boxes):
        x = left + i * (width + gap)
        scene.add(Box(x, top, width, 66, fill, EDGE[fill], 6))
        for text, dy, size, bold in ((title, 20, 13.5, True), (second, 39, 12, False)):
            scene.add(Text(x + width / 2, top + dy, text, size, "middle", INK, bold))
        scene.add(Text(x + width / 2, top + 56, third, 11.5, "middle", GREY))
        if i:
            right(scene, x - gap + 4, x - 4, top + 33)


def offline(scene: Scene, top: float) -> None:
    """compile.py around its stages."""
    scene.add(Box(MARGIN, top, WIDTH - 2 * MARGIN, 138, "#fffdf8", EDGE[STAGE], 8))
    scene.add(Text(MARGIN + 14, top + 22, "compile.py", 14, colour=INK, bold=True))
    said = "a plan becomes gradients · training, eval and step model · forward and backward halves"
    scene.add(Text(MARGIN + 104, top + 22, said, 12, colour=GREY))
    end = WIDTH - MARGIN - 14
    scene.add(Text(end, top + 22, "offline, once; needs onnx", 12, "end", GREY))
    chain(scene, top + 36, MARGIN + 14, STAGE, STAGES)
    more = "optim/: the update, as nodes    ·    extend.py: gradients for your own operators"
    scene.add(Text(MARGIN + 14, top + 124, more, 12, colour=GREY))


def files(scene: Scene, top: float) -> None:
    """What artifacts/ writes."""
    scene.add(Box(MARGIN, top, WIDTH - 2 * MARGIN, 58, "#fbfcfd", EDGE[FILE], 8))
    scene.add(Text(MARGIN + 14, top + 34, "artifacts/", 14, colour=INK, bold=True))
    left, gap = MARGIN + 100, 10
    width = (WIDTH - MARGIN - 14 - left - gap * (len(FILES) - 1)) / len(FILES)
    for i, name in enumerate(FILES):
        x = left + i * (width + gap)
        scene.add(Box(x, top + 12, width, 34, FILE, EDGE[FILE], 4))
        scene.add(Text(x + width / 2, top + 33, name, 11.5, "middle", INK))


def runtime(scene: Scene, top: float) -> None:
    """runtime/ and its parts."""
    scene.add(Box(MARGIN, top, WIDTH - 2 * MARGIN, 114, "#fafffb", EDGE[RUN], 8))
    scene.add(Text(MARGIN + 14, top + 22, "runtime/", 14, colour=INK, bold=True))
    said = "step, eval, save, export"
    scene.add(Text(MARGIN + 86, top + 22, said, 12, colour=GREY))
    end = WIDTH - MARGIN - 14
    scene.add(Text(end, top + 22, "on the device; numpy + onnxruntime", 12, "end", GREY))
    chain(scene, top + 36, MARGIN + 14, RUN, PARTS)


def right(scene: Scene, start: float, end: float, y: float) -> None:
    """An arrow to the right."""
    scene.add(Line(((start, y), (end, y)), LINE, 1.6))
    scene.add(Line(((end - 5, y - 4), (end, y), (end - 5, y + 4)), LINE, 1.6))


def down(scene: Scene, x: float, start: float, end: float) -> None:
    """An arrow downwards."""
    scene.add(Line(((x, start), (x, end - 2)), LINE, 1.6))
    scene.add(Line(((x - 4, end - 7), (x, end - 2), (x + 4, end - 7)), LINE, 1.6))


def up(scene: Scene, x: float, start: float, end: float) -> None:
    """An arrow upwards."""
    scene.add(Line(((x, end), (x, start + 2)), LINE, 1.6))
    scene.add(Line(((x - 4, start + 7), (x, start + 2), (x + 4, start + 7)), LINE, 1.6))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        figure().write(Path(sys.argv[1]))
    else:
        TARGET.write_text(figure().svg(), encoding="utf-8")
