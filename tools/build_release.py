"""Build what is published: wheel, sources, their digests and a bill of materials.

    python3 dev.py build                 into dist/
    python3 dev.py build --output DIR

Everything is built twice, and the second result must equal the first to the last bit. The time in
the archives is that of the last commit, so whoever builds the same commit gets the same files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Build, compare, describe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    output: Path = parser.parse_args().output
    if strays := not_committed():
        print(
            f"These files are not as in the last commit, and the sources would hold them: "
            f"{', '.join(strays[:5])}{' …' if strays[5:] else ''}. Commit, remove or ignore them.",
            file=sys.stderr,
        )
        return 1
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        digests = [built(Path(folder)) for folder in (first, second)]
        if digests[0] != digests[1]:
            print(f"Two builds differ: {digests[0]} and {digests[1]}.", file=sys.stderr)
            return 1
        output.mkdir(parents=True, exist_ok=True)
        for name in digests[0]:
            shutil.copy(Path(first) / name, output / name)
    wheel = next(name for name in digests[0] if name.endswith(".whl"))
    _, version, *_ = wheel.split("-")
    bill = output / f"onnxtrain-{version}.cdx.json"
    bill.write_text(json.dumps(materials(version, digests[0]), indent=1) + "\n", "utf-8")
    sums = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests[0].items()))
    (output / "SHA256SUMS").write_text(sums, "utf-8")
    print(f"{sums}and {bill.name}, in {output}; built twice, the same to the last bit")
    return 0


def built(folder: Path) -> dict[str, str]:
    """Build once; digests by file name."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": commit_time()}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def not_committed() -> list[str]:
    """Files that were changed, or that git neither knows nor ignores."""
    command = ["git", "status", "--porcelain"]
    lines = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    return [line[3:] for line in lines]


def commit_time() -> str:
    """Seconds since 1970 of the last commit."""
    command = ["git", "log", "-1", "--format=%ct"]
    return subprocess.check_output(command, cwd=ROOT, text=True).strip()


def materials(version: str, digests: dict[str, str]) -> dict[str, Any]:
    """The bill of materials in the CycloneDX format: what a plain install brings along."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    requirements = [Requirement(line) for line in project["dependencies"]]
    wheel = next(name for name in digests if name.endswith(".whl"))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": "onnxtrain",
                "name": "onnxtrain",
                "version": version,
                "purl": f"pkg:pypi/onnxtrain@{version}",
                "licenses": [{"license": {"id": project["license"]}}],
                "hashes": [{"alg": "SHA-256", "content": digests[wheel]}],
            }
        },
        "components": [_component(requirement) for requirement in requirements],
        "dependencies": [
            {"ref": "onnxtrain", "dependsOn": sorted(r.name for r in requirements)},
        ],
    }


def _component(requirement: Requirement) -> dict[str, Any]:
    """A dependency: a range of versions, since a library does not choose one."""
    properties = [{"name": "onnxtrain:versions", "value": str(requirement.specifier)}]
    if requirement.marker is not None:
        properties.append({"name": "onnxtrain:where", "value": str(requirement.marker)})
    return {
        "type": "library",
        "bom-ref": requirement.name,
        "name": requirement.name,
        "purl": f"pkg:pypi/{requirement.name.lower()}",
        "properties": properties,
    }


if __name__ == "__main__":
    sys.exit(main())
