"""Pytest plugin for ORTTrainer's own tests on a machine without a GPU.

The tests ask, while they are collected, for the generation of the graphics card, only to choose a
table of expected losses; without an answer none of them can be collected. Nothing of onnxtrain is
replaced.
"""

from __future__ import annotations

import torch

if not torch.cuda.is_available():
    torch.cuda.get_device_capability = lambda device=None: (7, 0)
