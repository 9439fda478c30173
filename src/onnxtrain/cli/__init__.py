"""The `onnxtrain` command. It calls what the library offers in Python too.

One file per command (`app.COMMANDS`); what they share: `app` (the group, errors, exit codes),
`output` (what is printed), `silence` (no reports of use), `sources` and `match` (data), `run` (one
training run), `charts`.
"""

from . import silence as silence  # before onnxruntime is imported
from .app import main as main
