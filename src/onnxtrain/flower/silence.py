"""Importing this turns the usage statistics of Flower and Ray off, for child processes too.

A variable that is already set is left alone: who wants to report can.
"""

from __future__ import annotations

import os
import sys

VARIABLES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
READERS = ("flwr.supercore.telemetry", "flwr.common.telemetry")
"""Modules of Flower, newer and older, that read the first variable once, when imported."""

for _name, _value in VARIABLES.items():
    os.environ.setdefault(_name, _value)
for _reader in READERS:
    if _reader in sys.modules:  # Flower was imported before us
        vars(sys.modules[_reader])["FLWR_TELEMETRY_ENABLED"] = os.environ["FLWR_TELEMETRY_ENABLED"]
