"""The lists.

A module here has `PACKAGES` (a literal list: what pip installs beyond torch), `names()`, and
`case(name)`, which gives a `TorchCase` or an `OnnxCase`, or None where there is no such case after
all. `BATCH` says how many cases may share a process, one by default: give more where importing
costs more than a case.
"""
