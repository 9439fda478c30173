"""The `onnxtrain` command. It calls the stages of the library and owns no maths.

One file per command; what they share: `app` (the group, errors, exit codes), `output`
(what is printed), `sources` and `match` (data), `run` (one training run), `charts`.
"""

from .app import main as main
