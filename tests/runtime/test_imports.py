"""The device half needs numpy and onnxruntime, nothing else (see also tests/test_layers.py)."""

from __future__ import annotations

import subprocess
import sys

FORBIDDEN = ("onnx", "onnx_ir", "ml_dtypes", "torch", "sklearn", "numba", "flatbuffers")


def test_import_loads_nothing_heavy():
    code = (
        "import sys\n"
        "import numpy, onnxruntime\n"
        "before = set(sys.modules)\n"
        "import onnxtrain.api\n"
        "new = {m.split('.')[0] for m in set(sys.modules) - before}\n"
        f"bad = new & set({FORBIDDEN!r})\n"
        "assert not bad, bad\n"
        "ours = {m for m in sys.modules if m.startswith('onnxtrain.')}\n"
        "light = {'api', 'runtime', 'errors', 'hyper', 'operators', 'preparing'}\n"
        "bad = {m for m in ours if m.split('.')[1] not in light}\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_works_when_the_others_are_not_installed(artifacts):
    """A whole step, export included, with the other packages made impossible to import."""
    code = (
        "import sys\n"
        f"for name in {FORBIDDEN!r}:\n"
        "    sys.modules[name] = None\n"
        "import numpy as np, tempfile, os\n"
        "from onnxtrain.api import *\n"
        f"trainer = Trainer.from_directory({str(artifacts.directory)!r})\n"
        "x, y = np.ones((8, 4), np.float32), np.ones((8, 3), np.float32)\n"
        "trainer.fit((x, y), epochs=2, batch_size=4, validation_data=(x, y), progress=False)\n"
        "folder = tempfile.mkdtemp()\n"
        "trainer.save(os.path.join(folder, 'c'))\n"
        "trainer.export(os.path.join(folder, 'm.onnx'))\n"
        "CheckpointState.load_checkpoint(os.path.join(folder, 'c'))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
