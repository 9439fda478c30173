"""There is one of each: a second one of a kind is named here with its reason, or a mistake."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import onnxtrain
from onnxtrain import operators

SRC = Path(onnxtrain.__file__).parent
FILES = {p.relative_to(SRC).as_posix(): p.read_text() for p in sorted(SRC.rglob("*.py"))}


def code_of(text: str) -> str:
    """Without docstrings and comments."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            first = body[0] if body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                first.value = ast.Constant("")
    return ast.unparse(tree)


CODE = {name: code_of(text) for name, text in FILES.items()}


def matching(pattern: str) -> set[str]:
    """Files whose code matches."""
    return {name for name, text in CODE.items() if re.search(pattern, text)}


PATTERNS: dict[str, tuple[str, dict[str, str]]] = {
    "sessions of onnxruntime": (
        r"\bInferenceSession\(",
        {
            "runtime/session/devices.py": "the place",
            "runtime/session/native.py": "ones that tell their options, or what a build can do",
        },
    ),
    "bindings of onnxruntime": (
        r"\bSessionIOBinding\(|\.bind_output\(",
        {
            "runtime/session/binding.py": "the place",
            "runtime/session/native.py": "makes them for it",
            "runtime/session/cut_session.py": "one for each piece of a long model",
            "compat/ort/session.py": "outputs that a user asks of his own binding",
        },
    ),
    "how many threads": (
        r"intra_op_num_threads['\"]?(\]| *=|: *\w)",
        {
            "runtime/session/devices.py": "the place",
            "runtime/session/options.py": "of the session that never runs: none",
            "torch/_ortmodule_cache.py": "a setting that a user's own goes before",
        },
    ),
    "devices of onnxruntime": (
        r"\bOrtDevice\(",
        {
            "runtime/session/native.py": "the place",
        },
    ),
    "the moments of Adam": (
        r"class scale_by_adam|1(\.0)? - (beta|b)_?2",
        {
            "optim/transforms.py": "the place",
            "runtime/step/kernels.py": "the same in machine code; compared with the graph in tests",
        },
    ),
    "updates by a kernel of torch": (
        r"torch\._fused_",
        {
            "compat/ort/orttrainer/fused_adam.py": "the place: an optimizer of torch, for tensors "
            "of any type on any device, which no session and no buffer of ours has",
        },
    ),
    "defaults of the predecessor's optimizers": (
        r"['\"]do_bias_correction['\"]: ?[01]|1e-0?6, 0\.0\)",
        {
            "optim/recipes.py": "the place",
            "optim/optimizers.py": "the presets of AdamW, which blocks and FusedAdam take over",
        },
    ),
    "formulas of schedules": (
        r"math\.cos\(|\*\* ?(self\.)?power",
        {"runtime/loop/schedulers.py": "the place"},
    ),
    "cross entropy in primitives": (
        r"\bLogSoftmax\(",
        {
            "losses/classification.py": "the place",
            "losses/ctc.py": "scores of frames",
            "losses/distillation.py": "softened scores of student and teacher",
            "autodiff/rules/losses.py": "the gradient of the operator SoftmaxCrossEntropyLoss",
            "passes/cross_entropy.py": "splits the operator SoftmaxCrossEntropyLoss",
            "compat/ort/lowerings/losses.py": "an output of the predecessor's operators",
            "compat/onnxcustom/formulas.py": "log-probabilities of the second API",
        },
    ),
    "operators that read labels": (
        r"['\"]SoftmaxCrossEntropyLoss['\"], ?['\"]|\{['\"]NegativeLogLikelihoodLoss",
        {"operators.py": "the place"},
    ),
}


@pytest.mark.parametrize("kind", PATTERNS)
def test_a_second_one_has_a_reason(kind: str) -> None:
    pattern, known = PATTERNS[kind]
    found = matching(pattern)
    assert found <= set(known), f"{kind}: also in {sorted(found - set(known))}"
    places = {n for n, reason in known.items() if reason.startswith("the place")}
    assert len(places) == 1
    assert places <= found


def classes(name: str) -> Iterator[ast.ClassDef]:
    for node in ast.parse(FILES[name]).body:
        if isinstance(node, ast.ClassDef):
            yield node


def test_losses_are_in_one_package() -> None:
    """Faces of the second API inherit from its base class, and have no formula of their own."""
    for name in FILES:
        if name.startswith("losses/"):
            continue
        for found in classes(name):
            if found.name.endswith("Loss") and not found.name.startswith("_"):
                assert found.name.endswith("LearningLoss"), f"{name}: {found.name}"


def literal_sets(name: str) -> Iterator[tuple[str, set[str]]]:
    """Names bound to literal sets of strings."""
    for node in ast.walk(ast.parse(FILES[name])):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        for inner in ast.walk(node.value):
            if isinstance(inner, ast.Set | ast.Tuple | ast.List):
                items = [e.value for e in inner.elts if isinstance(e, ast.Constant)]
                if len(items) == len(inner.elts) and all(isinstance(i, str) for i in items):
                    yield node.targets[0].id, {str(i) for i in items}


SETS = {"losses/", "autodiff/", "passes/", "normalize/", "graph/", "runtime/", "optim/"}


def is_mostly(fact: frozenset[str]) -> Callable[[set[str]], bool]:
    return lambda found: len(found) >= 5 and len(found & fact) >= 0.8 * len(found)


@pytest.mark.parametrize("fact", ["ELEMENTWISE", "VIEWS", "RANDOM", "KEEPS_SHAPE"])
def test_operator_sets_are_in_the_table(fact: str) -> None:
    looks_like = is_mostly(getattr(operators, fact))
    for name in FILES:
        if name.startswith(tuple(SETS)) and "/rules/" not in name:
            for variable, found in literal_sets(name):
                where = f"{name}: {variable} looks like {fact} of operators.py"
                assert not looks_like(found) or name in ALLOWED_SETS, where


ALLOWED_SETS = {
    "artifacts/opset.py": "which versions of an operator mean the same",
    "graph/onnx_inference.py": "what exporters compute shapes with",
    "compat/onnxcustom/rewriter.py": "what may stand behind a loss",
    "passes/fusion.py": "operators whose kernels in onnxruntime are slow",
    "runtime/fusion/opcodes.py": "numbers of instructions",
    "runtime/session/fusion.py": "what gives truth values",
}


def test_names_of_files_tell() -> None:
    """`check.py` is a command, and nothing else."""
    assert [n for n in FILES if n.endswith("/check.py") or n == "check.py"] == ["cli/check.py"]
