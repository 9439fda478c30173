"""Rules of rules/control_flow.py need graphs around them, which a table line cannot give."""

from .harness import Case

CASES: list[Case] = []

TESTED_ELSEWHERE = dict.fromkeys(("If", "Loop", "Scan"), "../autodiff/test_control_flow.py")
