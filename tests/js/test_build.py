"""What is in the package is what the sources give."""

import gzip
import shutil
import subprocess

import pytest

from . import tools

JS = tools.ROOT / "js"


def tsc(folder, *arguments):
    compiler = tools.modules() / "node_modules" / "typescript" / "bin" / "tsc"
    command = [tools.node(), str(compiler), *map(str, arguments)]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:]


def contents(folder):
    files = (p for p in folder.rglob("*") if p.is_file() and p.parent.name != "ort")
    return {p.relative_to(folder).as_posix(): p.read_text() for p in files}


@pytest.fixture
def copy(tmp_path):
    """The sources with npm packages beside them, as after ``npm install``."""
    made = tmp_path / "js"
    shutil.copytree(JS, made, ignore=shutil.ignore_patterns("node_modules", "dist"))
    (made / "node_modules").symlink_to(tools.modules() / "node_modules")
    return made


def test_compiled_page_is_up_to_date(copy, tmp_path):
    made = tmp_path / "static"
    tsc(copy, "-p", "tsconfig.json", "--outDir", made / "js")
    subprocess.run([tools.node(), str(JS / "copy-page.mjs"), str(made)], check=True, timeout=60)
    assert contents(made) == contents(tools.STATIC), "run `npm run page` in js/"


def test_types_fit_the_real_library(copy):
    """Strict compilation against onnxruntime-common's own declarations; and the npm package."""
    tsc(copy, "-p", "test/tsconfig.json")
    tsc(copy, "-p", "tsconfig.lib.json")
    assert (copy / "dist" / "index.d.ts").is_file()


def test_runtime_in_the_package_is_the_published_one():
    dist = tools.modules() / "node_modules" / "onnxruntime-web" / "dist"
    ours = tools.STATIC / "ort"
    for name in ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs"):
        assert (ours / name).read_bytes() == (dist / name).read_bytes()
    wasm = gzip.decompress((ours / "ort-wasm-simd-threaded.wasm.gz").read_bytes())
    assert wasm == (dist / "ort-wasm-simd-threaded.wasm").read_bytes()
