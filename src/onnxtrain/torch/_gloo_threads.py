"""At the end of a program, let torch's communication threads finish first.

In torch 2.13 the exchange of gradients that DistributedDataParallel begins in a backward pass keeps
a Python object, the context of that pass. gloo's thread lets go of it after the exchange, for which
it needs the interpreter. If the program ends meanwhile, right behind its last step, Python refuses
and the process aborts ("terminate called without an active exception", exit code -6), which
torchrun takes for a failure of the job. It is a matter of milliseconds, and of a busy machine:
of 24 runs of a script of 100 steps, three aborted beside other programs.
"""

from __future__ import annotations

import time
from pathlib import Path

THREADS = Path("/proc/self/task")
GLOO = "pt_gloo_runloop"
"""What torch calls the threads that carry out exchanges."""
SLEEPS = "S"
LOOKS, PAUSE, LONGEST = 3, 0.002, 2.0
"""How often in a row all must be seen asleep, the seconds between two looks (in which they can have
the interpreter), and after how many seconds the program ends all the same."""


def wait_for_gloo() -> None:
    """Return when none of gloo's threads has anything to do; at once where there is none."""
    asleep, ends = 0, time.monotonic() + LONGEST
    while asleep < LOOKS and time.monotonic() < ends:
        states = gloo_states()
        if not states:
            return
        asleep = asleep + 1 if set(states) == {SLEEPS} else 0
        time.sleep(PAUSE)


def gloo_states() -> list[str]:
    """Of each of gloo's threads a letter, as Linux has it; none on other systems."""
    states = []
    for thread in THREADS.glob("*/stat"):
        try:
            _, _, rest = thread.read_text().partition(f"({GLOO})")
        except OSError:  # it has ended since
            continue
        states += rest.split()[:1]
    return states
