"""``python -m onnxtrain``: the command line."""

from .cli import main

raise SystemExit(main())
