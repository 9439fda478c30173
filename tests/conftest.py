"""For all tests: what could not run on this machine is said at the end."""

from __future__ import annotations

from collections import Counter

MISSING = ("not installed", "set ONNXTRAIN", "could not import")
"""Reasons that an installation would remove; all others belong to the cases."""


def pytest_terminal_summary(terminalreporter):
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(r.longrepr[2] for r in skipped if isinstance(r.longrepr, tuple))
    missing = {r: n for r, n in reasons.items() if any(m in r for m in MISSING)}
    if missing:
        terminalreporter.section("not run on this machine")
        for reason, count in missing.items():
            terminalreporter.write_line(f"{count} × {reason.removeprefix('Skipped: ')}")
