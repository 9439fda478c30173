"""One file: whatever fails or dies, the old or the new one is whole, and nothing else is left."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time

import pytest

from onnxtrain.runtime.files import atomic

from .injection import ERRORS, STEPS, Injected, failing

OLD, NEW = b"old" * 1000, [b"new" * 700, memoryview(b"end" * 900)]
WHOLE = b"".join(bytes(c) for c in NEW)

posix = pytest.mark.skipif(os.name != "posix", reason="links, pipes and forks of POSIX")


def leftovers(folder):
    return sorted(p.name for p in folder.iterdir() if p.name.endswith(".tmp"))


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("step", STEPS)
def test_a_fault_leaves_the_old_or_the_new_file(tmp_path, monkeypatch, step, kind):
    path = tmp_path / "checkpoint"
    path.write_bytes(OLD)
    with failing(monkeypatch, step, kind) as fault:
        try:
            atomic.write_atomically(path, NEW)
        except Injected:
            expected = OLD
        else:
            expected = WHOLE
    assert fault.fired
    assert path.read_bytes() == expected
    assert leftovers(tmp_path) == []


@posix
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_leaves_the_old_or_the_new_file_and_the_next_save_cleans_up(tmp_path, step):
    path = tmp_path / "checkpoint"
    path.write_bytes(OLD)
    child = os.fork()
    if child == 0:
        with failing(pytest.MonkeyPatch(), step, "kill"):
            atomic.write_atomically(path, NEW)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert path.read_bytes() in {OLD, WHOLE}
    assert leftovers(tmp_path) or path.read_bytes() == WHOLE or step == "open"
    atomic.write_atomically(path, NEW)
    assert path.read_bytes() == WHOLE
    assert leftovers(tmp_path) == []


@posix
def test_the_file_of_a_living_writer_stays(tmp_path):
    """Two processes write one path: neither takes the other's temporary file away."""
    path = tmp_path / "checkpoint"
    script = (
        "import sys\n"
        "from onnxtrain.runtime.files.atomic import write_atomically\n"
        "def slowly():\n"
        "    yield b'slow'\n"
        "    print('writing', flush=True)\n"
        "    sys.stdin.readline()\n"
        "write_atomically(sys.argv[1], slowly())\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as writer:
        assert writer.stdout.readline() == "writing\n"
        atomic.write_atomically(path, [b"quick"])
        assert len(leftovers(tmp_path)) == 1
        writer.stdin.write("\n")
        writer.stdin.close()
        assert writer.wait(30) == 0
    assert path.read_bytes() == b"slow"


@posix
def test_other_peoples_files_stay(tmp_path):
    path = tmp_path / "checkpoint"
    others = [".checkpoint.tmp", ".checkpoint.1.tmp", ".other.99999999.0123abcd.tmp", "x.tmp"]
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / ".checkpoint.99999998.0123abcd.tmp").mkdir()
    (tmp_path / ".checkpoint.99999999.0123abcd.tmp").touch()  # a process that cannot be
    atomic.write_atomically(path, NEW)
    assert leftovers(tmp_path) == sorted([*others, ".checkpoint.99999998.0123abcd.tmp"])


# --- what is not a file --------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_a_link(tmp_path, exists):
    (tmp_path / "disk").mkdir()
    real, link = tmp_path / "disk" / "real", tmp_path / "link"
    if exists:
        real.write_bytes(OLD)
    link.symlink_to(real)
    atomic.write_atomically(link, NEW, follow_links=True)
    assert link.is_symlink()
    assert real.read_bytes() == WHOLE
    atomic.write_atomically(link, [OLD])
    assert not link.is_symlink()
    assert link.read_bytes() == OLD
    assert real.read_bytes() == WHOLE, "somebody else may have put the link there"


@posix
def test_a_link_to_itself_is_replaced(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "link")
    atomic.write_atomically(tmp_path / "link", NEW, follow_links=True)
    assert (tmp_path / "link").read_bytes() == WHOLE


@posix
def test_dev_null_stays_a_device(tmp_path):
    atomic.write_atomically(os.devnull, NEW)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    (tmp_path / "link").symlink_to(os.devnull)
    atomic.write_atomically(tmp_path / "link", NEW, follow_links=True)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@posix
def test_a_pipe_gets_the_data(tmp_path):
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="nobody reads"):
        atomic.write_atomically(pipe, NEW)

    def read():
        received.append(pipe.read_bytes())

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(1000):  # until the reader is there
        try:
            atomic.write_atomically(pipe, NEW)
            break
        except OSError:
            time.sleep(0.01)
    thread.join(10)
    assert received == [WHOLE]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@posix
def test_a_socket_is_refused(tmp_path, monkeypatch):
    import socket

    monkeypatch.chdir(tmp_path)  # the names of sockets are short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        with pytest.raises(OSError, match="is a socket"):
            atomic.write_atomically("socket", NEW)


def test_no_space_is_the_systems_error(tmp_path, monkeypatch):
    with failing(monkeypatch, "write", "no space"), pytest.raises(OSError, match="No space left"):
        atomic.write_atomically(tmp_path / "checkpoint", NEW)
