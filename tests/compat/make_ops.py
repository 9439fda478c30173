"""Runs every case of `op_cases.py` with the real 1.19.2 and stores models, inputs and results.

Not a test; run as `make_data.py` is.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from op_cases import CASES, build

RESULTS = Path(__file__).parent / "data" / "ops.npz"


def main():
    results, failed = {}, 0
    for name in CASES:
        try:
            model, feeds = build(onnx, name)
            session = onnxruntime.InferenceSession(model.SerializeToString())
            outputs = session.run(None, feeds)
        except Exception as error:
            print(f"{name}: FAILED {str(error)[-200:]}")
            failed += 1
            continue
        results[f"{name}/model"] = np.frombuffer(model.SerializeToString(), np.uint8)
        for key, value in feeds.items():
            results[f"{name}/in/{key}"] = value
        for output, value in zip(session.get_outputs(), outputs):
            results[f"{name}/out/{output.name}"] = value
    np.savez_compressed(RESULTS, **results)
    print(len(CASES) - failed, "of", len(CASES))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
