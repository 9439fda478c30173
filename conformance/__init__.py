"""Public lists of networks and operators, tried one by one: `python3 -m conformance LIST`.

`run.py` starts processes and writes rows, `worker.py` is such a process, `check.py` says what is
tried of a case, `verdicts.py` who is right where two gradients differ. A list is a module of
`lists/`.
"""
