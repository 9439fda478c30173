"""Programs of several processes: nothing of them stays, and a witness tells whom they call."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
MARK = "ONNXTRAIN_TEST_RUN"
"""Variable that all processes of a run inherit, also those in sessions of their own."""

CLOUD = ("169.254.169.254 from ['", "metadata.google.internal from ['")
"""Ray asks the machine's own cloud, if it is in one, for its name, statistics or not; it tells
nobody. The guide says so. These names exist inside a cloud only."""

WITNESS = '''
import os, socket, sys

def heard(event, arguments):
    """Python imports this file when it starts: no process of the run can avoid it."""
    if event == "socket.getaddrinfo":
        told = str(arguments[0])
    elif event == "socket.connect" and arguments[0].type & 15 == socket.SOCK_STREAM:
        told = str(arguments[1][0]) if isinstance(arguments[1], tuple) else "localhost"
    else:
        return
    own = {"", "None", "localhost", "::1", "0.0.0.0", "::", socket.gethostname()}
    if told in own or told.startswith("127.") or told in os.environ["OWN_ADDRESSES"].split():
        return
    with open(os.environ["WITNESS"], "a") as file:
        file.write(f"{told} from {sys.argv}\\n")
    raise ConnectionRefusedError(f"a test does not call {told}")

sys.addaudithook(heard)
'''


def own_addresses() -> str:
    """Addresses of this machine; a packet is not sent to find them out."""
    found = {"127.0.0.1"}
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        found.add(probe.getsockname()[0])
    return " ".join(found)


class Program:
    """One run of a command with a folder of its own."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.calls = folder / "calls.txt"
        hook = folder / "witness"
        hook.mkdir()
        (hook / "sitecustomize.py").write_text(WITNESS)
        silent = {"FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK", "RAY_USAGE_STATS_ENABLED"}
        inherited = {k: v for k, v in os.environ.items() if k not in silent}
        self.variables = {
            **inherited,
            MARK: self.mark,
            "WITNESS": str(self.calls),
            "OWN_ADDRESSES": own_addresses(),
            "PYTHONPATH": os.pathsep.join([str(hook), str(ROOT)]),
            "TMPDIR": "/tmp" if os.name == "posix" else str(folder),  # short: ray's sockets
            **variables,
        }

    def python(self, *arguments: object, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run Python; whatever happens, all processes of the run have ended afterwards."""
        output = self.folder / "output.txt"
        with output.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=self.variables, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                code = -1
                file.write(f"\nThe test gave up after {timeout:g} s.\n")
            finally:
                self.left = self.remaining(20.0) if process.poll() is not None else []
                for pid in [process.pid, *self.pids()]:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
                process.wait(20)
        return subprocess.CompletedProcess(process.args, code, output.read_text())

    def outside(self) -> list[str]:
        """Whom the run called, or tried to, outside of this machine."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line for line in lines if not line.startswith(CLOUD)]

    def remaining(self, patience: float) -> list[str]:
        """Commands that still run; some need a moment to notice that their parent has ended."""
        deadline = time.monotonic() + patience
        while (left := list(self.pids())) and time.monotonic() < deadline:
            time.sleep(0.2)
        return [_command(pid) for pid in left]

    def pids(self) -> Iterator[int]:
        """Processes with the mark (none where there is no /proc)."""
        wanted = f"{MARK}={self.mark}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def tail(lines: str, count: int = 60) -> str:
    """The end of a long output."""
    return "\n".join(lines.splitlines()[-count:])


def logs(paths: Sequence[Path]) -> str:
    """The ends of log files, each under its name."""
    return "".join(f"\n--- {p.name}\n{tail(p.read_text(errors='replace'), 30)}" for p in paths)
