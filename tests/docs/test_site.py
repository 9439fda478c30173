"""The documentation site builds without a warning, and nothing in it leads nowhere."""

from __future__ import annotations

import ast
import html.parser
import inspect
import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest

from onnxtrain import errors
from tests.browser import BROWSER, browse
from tests.docs.blocks import run_page
from tests.docs.models import blobs, classifier

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PROSE = [
    p
    for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/README.md")]
    if p.is_file()
]


class Page(html.parser.HTMLParser):
    """Links, loaded resources and anchors of an HTML page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors.update(v for k, v in attrs if k in {"id", "name"} and v)
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag in {"script", "img"} and found.get("src"):
            self.loads.append(found["src"])
        if tag == "link" and found.get("rel") in {"stylesheet", "icon", "preload", "preconnect"}:
            self.loads.append(found.get("href", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site; a warning is an error."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Page]:
    """Every page of the built site, parsed."""
    return {p: Page(p.read_text(encoding="utf-8")) for p in site.rglob("*.html")}


REPOSITORY = "https://github.com/onnxtrain/onnxtrain/"


def test_readme_links_work_on_the_package_index_too():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    assert all(link.startswith("https://") for link in links)
    inside = [link.removeprefix(REPOSITORY) for link in links if link.startswith(REPOSITORY)]
    for kind, path in (link.split("/main/") for link in inside):
        target = ROOT / urldefrag(path).url
        assert target.is_dir() if kind == "tree" else target.is_file(), path


def test_every_source_page_is_built(site, pages):
    for source in DOCS.rglob("*.md"):
        assert (site / source.relative_to(DOCS)).with_suffix(".html") in pages, source


def test_no_internal_link_is_broken(site, pages):
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are absolute: it may be shown anywhere
            continue
        for link in page.links:
            if urlparse(link).scheme or link.startswith("//"):
                continue
            target, anchor = urldefrag(link)
            file = (path.parent / unquote(target)).resolve() if target else path
            file = file / "index.html" if file.is_dir() else file
            if not file.is_file():
                broken.append(f"{path.name}: {link}")
            elif anchor and file in pages and unquote(anchor) not in pages[file].anchors:
                broken.append(f"{path.name}: {link} (no such place on the page)")
    assert not broken, "\n".join(broken)


def test_nothing_is_loaded_from_elsewhere(pages):
    loads = {load for page in pages.values() for load in page.loads}
    assert loads
    assert not [load for load in loads if urlparse(load).netloc]


def test_what_pages_load_is_there(site, pages):
    for path, page in pages.items():
        for load in page.loads if path.name != "404.html" else []:
            if not load.startswith("data:"):
                assert (path.parent / unquote(urldefrag(load)[0])).is_file(), f"{path}: {load}"


def test_links_to_the_repository_exist(pages):
    prefix = "https://github.com/onnxtrain/onnxtrain/blob/main/"
    links = {link for page in pages.values() for link in page.links if link.startswith(prefix)}
    assert links
    for link in links:
        assert (ROOT / urldefrag(link)[0].removeprefix(prefix)).exists(), link


@pytest.mark.parametrize("path", PROSE, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_relative_links_of_markdown_files_exist(path):
    """In the repository as well as on the site."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        target = urldefrag(link)[0]
        if not target or urlparse(target).scheme:
            continue
        file = (path.parent / target).resolve()
        assert file.exists() or is_api_page(file), f"{path.name}: {link}"


def is_api_page(file: Path) -> bool:
    """Whether a page is made when the site is built."""
    if file.parent != DOCS / "api":
        return False
    module = "" if file.stem == "onnxtrain" else file.stem
    return module in api_modules()


def api_modules() -> dict[str, str]:
    """The table of public modules in tools/site.py."""
    tree = ast.parse((ROOT / "tools" / "site.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "API":
            return dict(ast.literal_eval(node.value))
    raise AssertionError("tools/site.py has no table API")


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("api", ["Trainer", "Module", "Optimizer", "CheckpointState", "CosineAnnealingLR"]),
        ("onnxtrain", ["differentiate", "check_gradient", "TrainingSession", "TrainingAgent"]),
        ("artifacts", ["generate_artifacts", "LossType", "OptimType"]),
        ("onnxblock.loss", ["CrossEntropyLoss", "CTCLoss"]),
        ("optim", ["adamw", "Group", "scale_by_adam"]),
        ("extend", ["gradient", "elementwise", "zero_gradient"]),
        ("torch", ["ORTModule", "ORTTrainer"]),
        ("errors", ["NoGradientError", "CheckpointError"]),
    ],
)
def test_api_reference_has_the_public_names(site, pages, page, names):
    anchors = pages[site / "api" / f"{page}.html"].anchors
    for name in names:
        assert any(a.endswith(f".{name}") for a in anchors), name


def test_entries_of_the_reference_are_no_modules(site):
    """`optim.adafactor` is a function, and a module has the same name."""
    for path in (site / "api").glob("*.html"):
        assert "doc-symbol-module" not in path.read_text(encoding="utf-8"), path.name


def test_every_public_name_of_the_device_api_is_in_the_reference(site, pages):
    import onnxtrain.api

    anchors = {a.rpartition(".")[2] for a in pages[site / "api" / "api.html"].anchors}
    names = [n for n, v in vars(onnxtrain.api).items() if inspect.isclass(v)]
    assert names
    assert not [n for n in names if n not in anchors]


def test_a_page_of_the_reference_begins_with_what_people_use(site):
    for page, names in {
        "api": ["Trainer", "Module", "Optimizer", "CheckpointState"],
        "optim": ["adamw", "adam", "sgd"],
        "losses": ["CrossEntropyLoss", "MSELoss"],
        "sklearn": ["OnnxClassifier", "OnnxRegressor"],
        "onnxtrain": ["differentiate", "check_gradient", "summarize"],
        "lora": ["add", "layers", "merge"],
    }.items():
        text = (site / "api" / f"{page}.html").read_text(encoding="utf-8")
        headings = re.findall(r'<h2 id="[\w.]*?(\w+)" class="doc', text)
        assert headings[: len(names)] == names, page
        rows = re.findall(r"<td><a[^>]*><code>(\w+)</code></a></td>\s*<td>(.*?)</td>", text)
        assert [name for name, _ in rows] == headings
        assert all(said.strip() for _, said in rows[: len(names)]), "with a sentence each"


# --- from disk, in a browser ----------------------------------------------------------------------


needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed")


@needs_browser
def test_search_works_from_disk(site, tmp_path):
    """Pages from disk may fetch nothing and run no worker."""
    address = (site / "index.html").as_uri() + "?q=adafactor"
    dom = browse(address, tmp_path, "--virtual-time-budget=60000", "--dump-dom")
    results = re.findall(r'<a href="([^"]+)" class="md-search-result__link"', dom)
    assert len(results) > 3, dom[-3000:]
    assert any("optim" in unquote(link) for link in results)
    for link in results:
        assert link.startswith(site.as_uri())
        assert Path(unquote(urlparse(link).path)).is_file(), link


@needs_browser
def test_the_table_of_operators_is_filtered(site, tmp_path):
    address = (site / "ops.html").as_uri() + "?filter=convtr"
    dom = browse(address, tmp_path, "--virtual-time-budget=20000", "--dump-dom")
    rows = re.findall(r"<tr( hidden=\"\")?>\s*<td>(\w+)</td>", dom)
    shown = [name for hidden, name in rows if not hidden]
    assert shown == ["ConvTranspose"]
    assert len(rows) > 200
    assert re.search(r"<output>1 of \d+</output>", dom)
    options = re.findall(r"<option value=\"([^\"]+)\"", dom)
    assert {"rule", "stops the gradient"} <= set(options)


# --- notebooks and pictures -----------------------------------------------------------------------


def test_notebooks_are_the_examples():
    from tools.make_notebooks import SOURCES, stale

    assert not [name for name in SOURCES if stale(name)]


def test_notebooks_were_run_and_are_rendered(site):
    from tools.make_notebooks import SOURCES, TARGET

    for name in SOURCES:
        cells = json.loads((TARGET / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
        code = [c for c in cells if c["cell_type"] == "code"]
        assert [c["execution_count"] for c in code] == list(range(1, len(code) + 1))
        printed = ["".join(o["text"]) for c in code for o in c["outputs"] if "text" in o]
        assert printed, name
        page = (site / "notebooks" / f"{name}.html").read_text(encoding="utf-8")
        last = unescape(re.sub("<[^>]+>", "", page))
        assert printed[-1].strip().splitlines()[-1] in last
        assert (site / "notebooks" / f"{name}.ipynb").is_file()


@pytest.mark.parametrize("name", ["pipeline.svg", "artifacts.svg"])
def test_pictures_are_what_the_tool_draws(name):
    from tools.make_pictures import IMAGES, PICTURES

    message = f"run python -m tools.make_pictures {name}"
    assert PICTURES[name]() == (IMAGES / name).read_text(encoding="utf-8"), message


def test_the_drawn_gradient_is_one():
    """Not compared to the letter: a better pass may draw another graph."""
    from tools.make_pictures import IMAGES, gradient

    for text in (gradient(), (IMAGES / "gradient.svg").read_text(encoding="utf-8")):
        labels = re.findall(r"<text[^>]*>([^<]+)</text>", text)
        assert {"Gemm", "fc1_weight_grad", "fc2_bias_grad", "batch×32"} <= set(labels)
        assert text.count("<polygon") > 20


def test_pictures_are_small():
    for path in (DOCS / "images").rglob("*"):
        assert path.is_dir() or path.stat().st_size < 250_000, path


# --- what pages promise ---------------------------------------------------------------------------


def test_error_reference_has_every_error():
    text = (DOCS / "errors.md").read_text(encoding="utf-8")
    raised = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value)
        and issubclass(value, Exception)
        and not issubclass(value, Warning)
        and value.__module__ == errors.__name__
    }
    sections = re.split(r"^#{2,3} (?=\w+Error$)", text, flags=re.MULTILINE)[1:]
    found = {section.split("\n", 1)[0]: section for section in sections}
    assert set(found) == raised
    for name, section in found.items():
        assert "```python" in section, f"{name} has no example"
        assert "**Remedy**" in section or name == "OnnxTrainError", f"{name} has no remedy"


def test_code_of_the_readme_runs(tmp_path, monkeypatch):
    """Its names are taken for granted: model.onnx, and batches of images and labels."""
    monkeypatch.chdir(tmp_path)
    classifier("model.onnx")
    x, y = blobs(64)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert "generate_artifacts" in blocks[0]
    page = tmp_path / "README.md"
    page.write_text(f"```python\n{blocks[0]}```\n", encoding="utf-8")
    run_page(page, {"batches": [(x, y)] * 3})
    assert (tmp_path / "trained.onnx").is_file()


def test_gradient_code_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with_loss(tmp_path / "model.onnx")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    code = next(b for b in blocks if "differentiate(" in b)
    page = tmp_path / "README.md"
    page.write_text(f"```python\n{code}```\n", encoding="utf-8")
    names = run_page(page)
    assert [o.name for o in names["gradient_model"].graph.output][1:] == [
        "fc1.weight_grad",
        "x_grad",
    ]


def with_loss(path: Path) -> None:
    """A model whose output is a loss, with the names that the README uses."""
    import numpy as np
    from onnx import helper, save

    from tests.docs.models import model

    nodes = [
        helper.make_node("MatMul", ["x", "fc1.weight"], ["y"], "fc1"),
        helper.make_node("ReduceSumSquare", ["y"], ["loss"], "loss", keepdims=0),
    ]
    weights = {"fc1.weight": np.ones((3, 2))}
    save(model(nodes, {"x": ["batch", 3]}, {"loss": []}, weights), path)
