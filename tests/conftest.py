"""For all tests: a limit of time, and at the end a list of what could not run on this machine."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.defects import defect_of

os.environ.setdefault("ONNXTRAIN_QUIET", "1")  # on a busy machine much takes two seconds
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it is told nothing of our tests
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # its thread may abort a process at its end

MISSING = ("not installed", "set ONNXTRAIN", "could not import")
"""Reasons that an installation would remove; all others belong to the cases."""

HERE = Path(__file__).parent
LONG = 900
"""Seconds for tests that start programs of their own, which have limits below this."""
STARTS_PROGRAMS = {"docs", "examples", "flower", "js"}


LEFT_OUT = os.environ.get("ONNXTRAIN_LEFT_OUT", "").split()
"""Packages that ``dev.py test --without-torch`` does not install: tests that import one are
skipped. In every other run they fail."""


def skip_what_is_left_out(error):
    """Skip what failed because such a package is missing; return for every other error."""
    while error is not None:
        name = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        if name is not None and name.partition(".")[0] in LEFT_OUT:
            pytest.skip(f"{name} is not installed", allow_module_level=True)
        error = error.__cause__ or error.__context__


class Module(pytest.Module):
    """A file of tests, which is skipped as a whole if it imports what is left out."""

    def collect(self):
        try:
            return super().collect()
        except self.CollectError as error:
            skip_what_is_left_out(error)
            raise


def pytest_pycollect_makemodule(module_path, parent):
    return Module.from_parent(parent, path=module_path) if LEFT_OUT else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    try:
        return (yield)
    except Exception as error:
        skip_what_is_left_out(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup():
    try:
        return (yield)
    except Exception as error:
        skip_what_is_left_out(error)
        raise


def pytest_collection_modifyitems(items):
    for item in items:
        folders = {HERE / name for name in STARTS_PROGRAMS}
        is_long = not folders.isdisjoint(item.path.parents) or item.get_closest_marker("slow")
        if is_long and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG))
        defect = defect_of(item.nodeid)
        if defect is not None:
            reason = f"{defect.package} before {defect.before}: {defect.reason}"
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter):
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(r.longrepr[2] for r in skipped if isinstance(r.longrepr, tuple))
    missing = {r: n for r, n in reasons.items() if any(m in r for m in MISSING)}
    if missing:
        terminalreporter.section("not run on this machine")
        for reason, count in missing.items():
            terminalreporter.write_line(f"{count} × {reason.removeprefix('Skipped: ')}")
