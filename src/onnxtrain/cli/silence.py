"""Importing this keeps onnxruntime from reporting on its use, for child processes too.

Its packages for Linux and macOS do so from 1.29 on: a thread from the first import on, an
identifier on disk, and now and then an abort when a process ends while a report is under way. It is
the command line that decides this for its own processes. A program that imports onnxtrain decides
for itself. A variable that is already set is left alone: who wants to report can.
"""

from __future__ import annotations

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
