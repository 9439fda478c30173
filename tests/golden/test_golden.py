"""Every later version trains what a release wrote, to the numbers that it gave."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import onnxtrain

from .make import FOLDER, STEPS, batch, opened, steps

RELEASES = sorted(p for p in FOLDER.iterdir() if (p / "expected.json").is_file())


def test_this_version_has_files() -> None:
    assert onnxtrain.__version__ in {p.name for p in RELEASES}


@pytest.mark.parametrize("folder", RELEASES, ids=lambda p: p.name)
def test_a_release_is_read(folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text("utf-8"))
    _, module, optimizer = opened(folder, "checkpoint")
    np.testing.assert_allclose(steps(module, optimizer, 0), expected["before"], rtol=1e-5)


@pytest.mark.parametrize("folder", RELEASES, ids=lambda p: p.name)
def test_a_checkpoint_of_a_release_is_continued(folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text("utf-8"))
    _, module, optimizer = opened(folder, "half")
    np.testing.assert_allclose(steps(module, optimizer, STEPS), expected["after"], rtol=1e-5)
    module.eval()
    np.testing.assert_allclose(module(*batch(100)), expected["evaluated"], rtol=1e-5)
