"""A real deployment on this machine: a SuperLink and two SuperNodes, over 127.0.0.1 only."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from federated_digits import task

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
LIMIT = 300.0
"""Seconds after which the whole is given up."""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def environment(home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str(home),
        "FEDERATED_DIGITS": str(task.FOLDER),
        "NODES": "2",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }


def main() -> None:
    """Start everything, wait for the result, stop everything."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that `finally` is reached
    shutil.rmtree(task.FOLDER, ignore_errors=True)
    task.make_artifacts()
    home = task.FOLDER / "flower_home"
    home.mkdir()
    link, fleet, apps, *nodes = free_ports(5)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "local"\n\n[superlink.local]\n'
        f'address = "127.0.0.1:{link}"\ninsecure = true\n'
    )
    variables = environment(home)
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> None:
        log = (task.FOLDER / f"{name}.log").open("wb")
        command = [str(BIN / arguments[0]), *arguments[1:]]
        started.append(subprocess.Popen(command, env=variables, stdout=log, stderr=log, cwd=home))

    try:
        one_port = has_one_port(variables)
        if one_port:
            fleet = link
            of_link = f"--host 127.0.0.1 --port {link} --disable-runtime-dependency-installation"
        else:
            of_link = (
                f"--control-api-address 127.0.0.1:{link} --fleet-api-address 127.0.0.1:{fleet} "
                f"--serverappio-api-address 127.0.0.1:{apps}"
            )
        start("superlink", "flower-superlink", "--insecure", *of_link.split())
        for port in {link, fleet}:
            wait_for(port, started[0])
        for number, port in enumerate(nodes):
            own = f"--clientappio-api-address 127.0.0.1:{port}"
            of_node = f"--host 127.0.0.1 --port {port}" if one_port else own
            start(
                f"supernode{number}", "flower-supernode", "--insecure", *of_node.split(),
                "--superlink", f"127.0.0.1:{fleet}",
                "--node-config", f"partition-id={number} num-partitions=2",
            )  # fmt: skip
        with (task.FOLDER / "run.log").open("wb") as log:
            subprocess.run(
                [str(BIN / "flwr"), "run", str(HERE), "local", "--stream"],
                env=variables, check=True, timeout=LIMIT, cwd=home, stdout=log, stderr=log,
            )  # fmt: skip
        print(f"two SuperNodes     {result():.4f}")
    finally:
        others = descendants([p.pid for p in started])
        for process in reversed(started):
            process.terminate()
        for process in started:
            stop(process)
        for pid in others:  # an interrupted app would wait for its SuperLink, in vain
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def has_one_port(variables: dict[str, str]) -> bool:
    """Whether a SuperLink of the installed release has one port, or one for each interface."""
    command = [str(BIN / "flower-superlink"), "--help"]
    said = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    return "--port PORT" in said.stdout


def descendants(pids: list[int]) -> list[int]:
    """What those processes have started, and so on (where there is /proc)."""
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
    found, more = set(), set(pids)
    while more:
        more = {pid for pid, parent in parents.items() if parent in more} - found
        found |= more
    return sorted(found)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Wait for its end, not for ever."""
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Until something listens there."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise SystemExit(f"The SuperLink did not start; see {task.FOLDER / 'superlink.log'}.")


def result() -> float:
    """Accuracy on the test digits, which the server leaves behind when all went well."""
    file = task.FOLDER / "result.json"
    if not file.exists():
        raise SystemExit(f"The run did not finish; see the logs in {task.FOLDER}.")
    accuracy: float = json.loads(file.read_text())["test"]
    return accuracy


if __name__ == "__main__":
    main()
