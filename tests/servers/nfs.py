"""A real NFS server, nfs-ganesha, and mounts of it in user space: each is a client of its own, as a host is.

Import ``nfs_server`` and ``nfs`` into a test module. They take Debian's packages ``nfs-ganesha``, ``nfs-ganesha-vfs``
and ``libnfs13`` (``libnfs14``), a kernel with FUSE, and the rights of root; else tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.children.fuse_mount import unmount
from tests.children.nfs_mount import libnfs
from tests.helpers.checkout import ROOT
from tests.servers.ports import free_port

MountedNfs = Callable[..., Path]
EXPORT = "/export"
_START_SECONDS = 30
_LINK = 11
"""The number of the operation in NFSv4 (RFC 7530, section 16.9), whose one argument is the new name."""

_CONFIGURATION = """
NFS_CORE_PARAM {{
  Protocols = 4; NFS_Port = {port}; Bind_addr = 127.0.0.1; Enable_NLM = false; Enable_RQUOTA = false;
  Plugins_Dir = "{plugins}";
}}
NFSV4 {{
  Graceless = true; RecoveryBackend = fs; RecoveryRoot = "{folder}/state"; Only_Numeric_Owners = true;
  UseGetpwnam = true;
}}
EXPORT {{
  Export_Id = 1; Path = "{folder}/files"; Pseudo = "{export}"; Access_Type = RW; Squash = No_Root_Squash;
  SecType = sys; Protocols = 4; Transports = TCP; FSAL {{ Name = VFS; }}
}}
"""


class NfsServer:
    """A server of its own for a folder of its own."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.port = free_port()
        self.files = folder / "files"
        self.files.mkdir(parents=True)
        (folder / "state").mkdir()
        plugins = next(program.parents[1].glob("lib/*/ganesha/libfsalvfs.so")).parent
        configuration = _CONFIGURATION.format(port=self.port, plugins=plugins, folder=folder, export=EXPORT)
        (folder / "configuration").write_text(configuration)
        command = [program, "-F", "-f", folder / "configuration", "-L", folder / "log", "-p", folder / "pid"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > until:
                self.stop()
                pytest.skip(f"nfs-ganesha could not be started: {(folder / 'log').read_text()[-1000:]}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        return False

    def stop(self) -> None:
        """Kill it; its files stay."""
        self.process.kill()
        self.process.wait()


class NfsLine:
    """A line to a server. ``lose`` has names: the next link to each is carried out, and the line breaks in place of
    its reply. ``drop`` has names for which it breaks before the request arrives.
    """

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.lose: list[str] = []
        self.drop: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._upstream))
            lost = threading.Event()
            threading.Thread(target=self._requests, args=(client, server, lost), daemon=True).start()
            threading.Thread(target=self._replies, args=(client, server, lost), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 20):
                if _taken(self.drop, data):
                    break
                if _taken(self.lose, data):
                    lost.set()
                server.sendall(data)
        _hang_up(client, server)

    def _replies(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 20):
                if lost.is_set():
                    break
                client.sendall(data)
        _hang_up(client, server)

    def close(self) -> None:
        """Take no further connections; those that are open stay."""
        self._listener.close()


def _taken(names: list[str], request: bytes) -> bool:
    """Whether a request links one of the names, which is taken off the list then."""
    for name in names:
        raw = os.fsencode(name)
        if struct.pack(">II", _LINK, len(raw)) + raw in request:
            names.remove(name)
            return True
    return False


def _hang_up(*lines: socket.socket) -> None:
    for line in lines:
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)
        line.close()


@pytest.fixture(scope="session")
def nfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NfsServer]:
    """A server that lives as long as the session."""
    program = shutil.which("ganesha.nfsd")
    if program is None or libnfs() is None:
        pytest.skip("needs nfs-ganesha, nfs-ganesha-vfs and libnfs13: apt-get install them")
    server = NfsServer(Path(program), tmp_path_factory.mktemp("nfs"))
    yield server
    server.stop()


@pytest.fixture
def nfs_line(nfs_server: NfsServer) -> Iterator[NfsLine]:
    """A line to the server that can break."""
    line = NfsLine(nfs_server.port)
    yield line
    line.close()


@pytest.fixture
def nfs(nfs_server: NfsServer, tmp_path: Path) -> Iterator[MountedNfs]:
    """Mounts the export, on each call once more; ``port`` is that of a line, after whose breaks a ``soft`` mount does
    not try again.
    """
    mounts: list[tuple[Path, subprocess.Popen[str]]] = []

    def mounted(port: int = 0, *, soft: bool = False) -> Path:
        target = tmp_path / f"nfs-{len(mounts)}"
        target.mkdir()
        arguments = [str(port or nfs_server.port), EXPORT, str(target), *(["soft"] if soft else [])]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.children.nfs_mount", *arguments],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        mounts.append((target, process))
        assert process.stdout is not None
        if process.stdout.readline() != "mounted\n":
            pytest.skip(f"no mount here: {process.communicate()[1].strip().splitlines()[-1]}")
        return target

    yield mounted
    for target, process in mounts:
        unmount(target)
        process.kill()
        process.communicate()
