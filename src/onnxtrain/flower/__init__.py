"""Federated learning on Flower: artifacts train where the data are, only parameters travel.

`client_app` and `server_app` make Flower's two halves from a folder of artifacts. Flower sends
usage statistics to its makers unless told otherwise; importing this package first turns that off
(``FLWR_TELEMETRY_ENABLED=0``), unless the variable is already set.
"""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

try:
    import flwr as _flwr  # noqa: F401
except ImportError as _error:
    from ..errors import MissingPackageError

    raise MissingPackageError("flwr", "onnxtrain.flower", "flower") from _error

from .client import client_app as client_app
from .guard import Guard as Guard
from .local import LocalModel as LocalModel
from .secure import secure_server_app as secure_server_app
from .server import make_strategy as make_strategy
from .server import server_app as server_app
