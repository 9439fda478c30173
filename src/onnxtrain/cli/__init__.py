"""The `onnxtrain` command. It calls what the library offers in Python too.

One file per command (`app.COMMANDS`); what they share: `app` (the group, errors, exit codes),
`output` (what is printed), `sources` and `match` (data), `run` (one training run), `charts`.
"""

from .app import main as main
