"""Federated learning on Flower: artifacts train where the data are, only parameters travel.

`client_app` and `server_app` make Flower's two halves from a folder of artifacts. Flower and Ray,
on which its simulation runs, send usage statistics to their makers unless told otherwise; importing
this package turns that off (`silence`).
"""

from . import silence as _silence  # noqa: F401 - comes first: Flower reads its variables on import

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
