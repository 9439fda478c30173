"""Hooks of the documentation site, called by mkdocs (see mkdocs.yml).

- A navigation entry that ends in ``*`` stands for every page that matches and is not named
  elsewhere, so a new page shows up without touching mkdocs.yml.
- The API reference is made from what each public module re-exports, so it cannot be incomplete.
  Each page begins with what people use (`FIRST`).
- The notebooks of docs/notebooks are rendered, with what they printed.
- Links to files outside docs/ lead to the repository, those to notebooks to their pages.
"""

from __future__ import annotations

import ast
import fnmatch
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/onnxtrain/onnxtrain/blob/main"
API = {
    "": "The front door: `import onnxtrain` gives all of these. Each name is imported when it is "
    "first used.",
    "artifacts": "Offline: from a forward model to the files that a device needs "
    "([guide](../guides/artifacts.md)).",
    "api": "On the device: numpy and onnxruntime are enough "
    "([guide](../guides/device_training.md)).",
    "losses": "Losses; each goes into `generate_artifacts(loss=…)` "
    "([guide](../guides/custom_losses.md)).",
    "onnxblock": "Blocks that are stacked onto a model ([guide](../guides/custom_losses.md)).",
    "onnxblock.blocks": "The elementary blocks.",
    "onnxblock.loss": "Loss blocks, with the names and numbers of PyTorch's losses.",
    "onnxblock.optim": "Optimizer blocks under the predecessor's names; "
    "[`onnxtrain.optim`](optim.md) has the formulas.",
    "optim": "Optimizers as chains of small transforms; each goes into "
    "`generate_artifacts(optimizer=…)` ([defaults compared](../guides/optimizers.md)).",
    "lora": "Adapters beside the layers of a model ([guide](../guides/lora.md)).",
    "quant": "Weights of a few bits, under adapters ([guide](../guides/lora.md)).",
    "text": "Language models and sentence encoders: tokens, rows, samples "
    "([guide](../guides/language_models.md)).",
    "distillation": "A student that learns from a teacher ([guide](../guides/embeddings.md)).",
    "loggers": "Where the numbers of a run go ([guide](../guides/plugins.md)).",
    "tuning": "Search with Optuna ([guide](../guides/plugins.md)).",
    "training_info": "ONNX's own description of a training ([guide](../guides/training_info.md)).",
    "schedulers": "Learning-rate schedules, with the names and numbers of PyTorch's.",
    "extend": "Gradients for your own operators ([guide](../guides/custom_gradients.md)).",
    "torch": "PyTorch modules, trained in stock onnxruntime ([guide](../guides/pytorch.md)).",
    "torch.optim": "Optimizer settings of `ORTTrainer`.",
    "sklearn": "Estimators, and the classes of onnxcustom ([guide](../guides/sklearn.md)).",
    "distributed": "Training with several processes.",
    "federated": "Federated training.",
    "data": "Samplers and loaders.",
    "compat": "Artifacts and scripts of onnxruntime-training.",
    "errors": "The errors that all parts share ([when, and what to do](../errors.md)).",
}
"""Public modules of onnxtrain, in the order of the reference; those that do not exist are left
out."""
FIRST = {
    "": ["differentiate", "check_gradient", "summarize", "TrainingSession", "TrainingAgent"],
    "api": [
        "Trainer", "Module", "Optimizer", "CheckpointState", "EarlyStopping", "SaveCheckpoint",
        "Callback", "CosineAnnealingLR", "WarmUp", "OneCycleLR", "StepLR", "Accuracy",
    ],
    "losses": [
        "CrossEntropyLoss", "MSELoss", "BCEWithLogitsLoss", "L1Loss", "HuberLoss", "CausalLMLoss",
        "Loss",
    ],
    "optim": [
        "adamw", "adam", "sgd", "rmsprop", "lion", "lamb", "adafactor", "adagrad", "adadelta",
        "Group", "ClipNorm", "ClipValue", "chain",
    ],
    "lora": ["add", "layers", "merge", "Adapter", "save_peft", "load_peft", "save_onnx_adapter"],
    "sklearn": [
        "OnnxClassifier", "OnnxRegressor", "OrtGradientOptimizer",
        "OrtGradientForwardBackwardOptimizer", "add_loss_output",
    ],
    "torch": ["ORTModule", "ORTTrainer", "ORTTrainerOptions", "export"],
    "errors": ["OnnxTrainError", "ModelError", "NoGradientError", "UnknownNameError"],
    "extend": ["gradient", "elementwise", "zero_gradient"],
}  # fmt: skip
"""What people use most, which stands first on its page; the rest follows in its own order."""


# --- navigation -----------------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    """Replace the patterns in the navigation by pages."""
    docs = Path(config["docs_dir"])
    written = [p.relative_to(docs).as_posix() for p in docs.rglob("*.md")]
    pages = sorted(written, key=lambda p: (not p.endswith("index.md"), p))
    pages += [f"api/{page_name(m)}" for m in API if source_of(m) is not None]
    pages += [f"notebooks/{p.stem}.md" for p in sorted((docs / "notebooks").glob("*.ipynb"))]
    named = set(leaves(config["nav"]))
    left = [p for p in pages if p not in named]
    patterns = [p for p in leaves(config["nav"]) if p.endswith("*")]
    found: dict[str, list[str]] = {}
    for pattern in sorted(patterns, key=len, reverse=True):  # the most special one first
        found[pattern] = [p for p in left if matches(p, pattern)]
        left = [p for p in left if p not in found[pattern]]
    config["nav"] = filled(config["nav"], found)
    return config


def leaves(entry: Any) -> list[str]:
    """All pages and patterns of a part of the navigation."""
    if isinstance(entry, str):
        return [entry]
    children = entry.values() if isinstance(entry, dict) else entry
    return [page for child in children for page in leaves(child)]


def matches(page: str, pattern: str) -> bool:
    """Whether a page matches; ``*`` does not cross a slash."""
    return page.count("/") == pattern.count("/") and fnmatch.fnmatchcase(page, pattern)


def filled(entry: Any, found: dict[str, list[str]]) -> Any:
    """A part of the navigation without patterns; a section that would be empty is left out."""
    if isinstance(entry, dict):
        parts = {k: filled(v, found) for k, v in entry.items()}
        return {k: v[0] if alone(v) else v for k, v in parts.items() if v}
    if isinstance(entry, list):
        result: list[Any] = []
        for child in entry:
            whole = filled(child, found)
            result += whole if isinstance(whole, list) else [whole] if whole else []
        return result
    return found.get(entry, entry)


def alone(pages: Any) -> bool:
    """Whether a section would have only one page: then it needs no section."""
    return isinstance(pages, list) and len(pages) == 1 and isinstance(pages[0], str)


# --- the API reference ----------------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    """Add a page per public module, and one per notebook."""
    for notebook in sorted((Path(config["docs_dir"]) / "notebooks").glob("*.ipynb")):
        content = notebook_page(notebook)
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=content))
    for module in API:
        source = source_of(module)
        if source is not None:
            name = f"api/{page_name(module)}"
            files.append(File.generated(config, name, content=api_page(module, source)))
    return files


def page_name(module: str) -> str:
    """The file of a module's page."""
    return f"{module or 'onnxtrain'}.md"


def source_of(module: str) -> Path | None:
    """The file whose names are public; None for a module that does not exist."""
    folder = ROOT.joinpath("src", "onnxtrain", *module.split("."))
    for path in (folder / "__init__.py", folder.with_suffix(".py")):
        if path.is_file():
            return path
    return moved_module(module)


def moved_module(module: str) -> Path | None:
    """The file of a module that its package imports from elsewhere (``torch.optim``)."""
    package, _, name = module.rpartition(".")
    source = source_of(package) if package else None
    if source is None:
        return None
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        names = [a.name for a in node.names] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom) and node.level and name in names:
            folder = source.parents[node.level - 1].joinpath(*(node.module or "").split("."), name)
            files = (folder / "__init__.py", folder.with_suffix(".py"))
            return next((f for f in files if f.is_file()), None)
    return None


def api_page(module: str, source: Path) -> str:
    """Title, one sentence, and an entry per public name."""
    full = f"onnxtrain.{module}".rstrip(".")
    names = sorted(public_names(module, source), key=lambda name: rank(module, name))
    entries = [f"::: {entry(name, source)}" for name in names]
    listed = [] if module else ["Elsewhere:", front_door(source)]
    return "\n\n".join([f"# {full}", API[module], contents(names), *listed, *entries]) + "\n"


def entry(name: str, source: Path) -> str:
    """What mkdocstrings is asked for; see `docstrings.SHADOWED`."""
    last = name.rpartition(".")[2]
    tree = ast.parse(source.read_text(encoding="utf-8"))
    own = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    is_shadowed = source.name == "__init__.py" and source.with_name(f"{last}.py").is_file()
    return f"{name}__function" if is_shadowed and last in own else name


def rank(module: str, name: str) -> int:
    """Where a name stands on its page: those of the table first, the others as they come."""
    first, last = FIRST.get(module, []), name.rpartition(".")[2]
    return first.index(last) if last in first else len(first)


def contents(names: list[str]) -> str:
    """A table with the first sentence of each name's docstring."""
    rows = ["| name | what it is |", "|---|---|"]
    for name in names:
        text = " ".join(first_paragraph(name).split()).replace("|", "\\|")
        rows.append(f"| [`{name.rpartition('.')[2]}`][{name}] | {text} |")
    return "\n".join(rows)


def first_paragraph(name: str) -> str:
    """The beginning of the docstring of a public name."""
    parts = name.split(".")[1:]
    for at in range(len(parts) - 1, -1, -1):
        source = source_of(".".join(parts[:at]))
        if source is not None:
            node = definition(source, parts[at])
            text = ast.get_docstring(node) if node is not None else None
            return (text or "").split("\n\n")[0].split("::")[0]
    return ""


def definition(source: Path, name: str) -> ast.ClassDef | ast.FunctionDef | None:
    """Where a name of a module is defined, whatever it is imported through."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    for node in imports_and_definitions(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.level and node.module:
            original = [a.name for a in node.names if (a.asname or a.name) == name]
            folder = source.parents[node.level - 1].joinpath(*node.module.split("."))
            files = [f for f in (folder / "__init__.py", folder.with_suffix(".py")) if f.is_file()]
            if original and files:
                return definition(files[0], original[0])
    return None


def imports_and_definitions(tree: ast.Module) -> list[ast.stmt]:
    """The statements of a module, those that only a type checker sees included."""
    return [s for node in tree.body for s in (node.body if isinstance(node, ast.If) else [node])]


def front_door(source: Path) -> str:
    """A list of what the package itself offers and another page describes."""
    rows = [
        f"- [`onnxtrain.{name}`]({page_name(home or name)})"
        for name, home in lazy_names(source).items()
        if (home or name) in API
    ]
    return "\n".join(rows)


def lazy_names(source: Path) -> dict[str, str]:
    """What a type checker sees of the package: names and the modules that they are in."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    blocks = [node.body for node in tree.body if isinstance(node, ast.If)]
    return {
        alias.name: node.module or ""
        for block in blocks
        for node in block
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def public_names(module: str, source: Path) -> list[str]:
    """Full names of what a module offers: re-exports (``x as x``), else its own definitions."""
    full = f"onnxtrain.{module}".rstrip(".")
    tree = ast.parse(source.read_text(encoding="utf-8"))
    if not module:
        homes = {n: home for n, home in lazy_names(source).items() if home and home not in API}
        files = {n: source_of(home) for n, home in homes.items()}
        own = [n for n, file in files.items() if file is not None and is_own(file, n)]
        return [f"onnxtrain.{homes[n]}.{n}" for n in own]
    chosen = listed_names(tree)
    exported = [
        public_path(full, node.module, alias.name, source)
        for node in imports_and_definitions(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if (alias.asname == alias.name or alias.name in chosen) and is_own(source, alias.name)
    ]
    own = [
        f"{full}.{node.name}"
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    ]
    return [n for n in [*exported, *own] if not chosen or n.rpartition(".")[2] in chosen]


def listed_names(tree: ast.Module) -> list[str]:
    """What a module lists as its public names, if it does so in plain words."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            try:
                return list(ast.literal_eval(node.value))
            except ValueError:
                return []
    return []


def public_path(package: str, module: str | None, name: str, source: Path) -> str:
    """The name as users import it, unless a module beside it has the same one."""
    if source.with_name(f"{name}.py").is_file():
        return f"{package}.{module}.{name}"
    return f"{package}.{name}"


def is_own(source: Path, name: str) -> bool:
    """Whether a name is defined in this package: no module, and not from another package."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    for node in imports_and_definitions(tree):
        if isinstance(node, ast.ImportFrom) and name in [a.asname or a.name for a in node.names]:
            if not node.level or node.module is None:
                return False
            folder = source.parents[node.level - 1].joinpath(*node.module.split("."))
            files = [f for f in (folder / "__init__.py", folder.with_suffix(".py")) if f.is_file()]
            original = next(a.name for a in node.names if (a.asname or a.name) == name)
            is_module = (folder / original).is_dir() or (folder / f"{original}.py").is_file()
            return bool(files) and not is_module and is_own(files[0], original)
    return True


# --- notebooks ------------------------------------------------------------------------------------


def notebook_page(path: Path) -> str:
    """A notebook as a page: its text, its code, and what the code printed."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
        else:
            parts += [fenced("python", text), *map(output_text, cell["outputs"])]
    title, *rest = parts
    tail = f"[Download this notebook]({path.name})"
    return "\n\n".join([title, tail, *filter(None, rest)]) + "\n"


def output_text(output: dict[str, Any]) -> str:
    """What a cell printed, as the page shows it."""
    data = output.get("data", {})
    text = output.get("text", data.get("text/plain", []))
    return fenced('text title="output"', "".join(text).rstrip())


def fenced(language: str, text: str) -> str:
    """A block that no line of the text can close."""
    longest = max((len(run) for run in re.findall("`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


# --- links ----------------------------------------------------------------------------------------


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links to files outside docs/ lead to the repository, and to notebooks to their pages.

    They are written relative to the page, so that they also work where the source is read.
    """
    del files
    docs = Path(config["docs_dir"]).resolve()
    if page.file.abs_src_path is None:
        return markdown
    here = Path(page.file.abs_src_path).resolve().parent

    def absolute(found: re.Match[str]) -> str:
        target, _, anchor = found.group(2).partition("#")
        path = (here / target).resolve()
        if path.parent == docs / "notebooks" and path.suffix == ".ipynb":
            return f"{found.group(1)}({target.removesuffix('.ipynb')}.md)"
        if docs in (path, *path.parents) or not path.is_relative_to(ROOT) or not path.exists():
            return found.group(0)
        tail = f"#{anchor}" if anchor else ""
        return f"{found.group(1)}({REPOSITORY}/{path.relative_to(ROOT).as_posix()}{tail})"

    return re.sub(r"(\[[^\]\n]*\])\(([^)\s:#][^)\s:]*)\)", absolute, markdown)
