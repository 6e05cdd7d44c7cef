"""Clients of NFS that are kernels: Debian's Linux in QEMU, with its caches of names and attributes.

A guest has the files of this host, read-only, and mounts what `tests.servers.nfs` serves. Import ``guests`` and
``nfs_server`` into a test module. It takes Debian's packages ``qemu-system-x86``, ``busybox-static`` and those of the
server; the kernel is fetched once, as a package that is not installed. Processors are emulated, so Python takes some
twenty seconds to start.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.helpers.checkout import ROOT
from tests.servers.nfs import EXPORT, NfsServer

_CACHE = Path.home() / ".cache" / "tidestate-tests" / "nfs-kernel"
_MODULES = ("virtio_pci", "virtio_net", "9pnet_virtio", "9p", "nfsv4")
_PROGRAMS = ("qemu-system-x86_64", "busybox", "apt-get", "dpkg-deb")
_START_SECONDS = 180
_LINE = "/dev/ttyS1"
_INIT = f"""#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules); do insmod /lib/$module; done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /host
mount -t proc proc /host/proc
mount -t sysfs sys /host/sys
mount -t devtmpfs dev /host/dev
mount -t tmpfs tmp /host/mnt
mkdir -p /host/mnt/tmp /host/dev/shm
mount -t tmpfs shm /host/dev/shm
ip link set lo up
ip link set eth0 up
ip address add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
hostname $(sed 's/.*guest=\\([^ ]*\\).*/\\1/' /proc/cmdline)
stty -F {_LINE} raw -echo
exec < {_LINE} > {_LINE} 2>&1
echo ready
while read -r line; do sh -c "$line"; echo "ended $?"; done
"""
"""The first process of a guest: it does each line that comes by the second serial line."""

GuestMaker = Callable[[], "Guest"]


class Guest:
    """A machine that `kill` cuts off as a power failure does: nothing that it has not sent reaches the server."""

    def __init__(self, folder: Path, name: str, kernel: Path, initial: Path) -> None:
        folder.mkdir()
        line = folder / "line"
        command = ["qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-m", "1200", "-nodefaults", "-no-reboot"]
        command += ["-display", "none", "-kernel", str(kernel), "-initrd", str(initial)]
        command += ["-append", f"console=ttyS0 panic=-1 mitigations=off guest={name}"]
        command += ["-serial", f"file:{folder / 'console'}", "-serial", f"unix:{line},server=on,wait=off"]
        command += ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]
        command += ["-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._folder, self.mounts = folder, 0
        try:
            self._line = self._connected(line)
            self._wait_for("ready")
        except BaseException:
            self.kill()
            raise

    def _connected(self, line: Path) -> socket.socket:
        until, connection = time.monotonic() + _START_SECONDS, socket.socket(socket.AF_UNIX)
        while True:
            with suppress(OSError):
                connection.connect(str(line))
                connection.settimeout(_START_SECONDS)
                self._lines = connection.makefile("r", newline="\n")
                return connection
            if self._process.poll() is not None or time.monotonic() > until:
                pytest.skip(f"QEMU could not be started: {(self._folder / 'log').read_text()[-1000:]}")
            time.sleep(0.05)

    def _wait_for(self, word: str) -> list[str]:
        lines: list[str] = []
        try:
            while not (lines and lines[-1].startswith(word)):
                text = self._lines.readline()
                assert text, f"the guest has ended: {(self._folder / 'console').read_text(errors='replace')[-2000:]}"
                lines.append(text.rstrip("\r\n"))
        except TimeoutError:
            console = (self._folder / "console").read_text(errors="replace")[-2000:]
            raise AssertionError(f"the guest says nothing more: {lines}, {console}") from None
        return lines

    def tell(self, command: str) -> None:
        """Begin it; `heard` has what it prints."""
        self._line.sendall(f"{command}\n".encode())

    def heard(self) -> list[str]:
        """The lines of a command, when it has ended well."""
        *lines, ended = self._wait_for("ended ")
        assert ended == "ended 0", "\n".join(lines)
        return lines

    def until(self, word: str) -> list[str]:
        """What a command that goes on prints before this line."""
        return self._wait_for(word)[:-1]

    def next_line(self) -> str:
        """Of a command that goes on."""
        return self._lines.readline().rstrip("\r\n")

    def run(self, command: str) -> list[str]:
        """Do it, and what it printed."""
        self.tell(command)
        return self.heard()

    def python(self, *words: str) -> str:
        """The command by which Python of this checkout runs there."""
        given = " ".join(f"'{word}'" for word in words)
        environment = f"PYTHONDONTWRITEBYTECODE=1 TMPDIR=/mnt/tmp HOME=/mnt PYTHONPATH={ROOT}"
        python = Path(os.sys.executable)  # type: ignore[attr-defined]
        return f"chroot /host /usr/bin/env -C {ROOT} {environment} {python} {given}"

    def mount(self, server: NfsServer) -> str:
        """Mount the export once more, as a host of its own would: with caches that no other mount shares."""
        place = f"/mnt/nfs-{self.mounts}"
        self.mounts += 1
        options = f"addr=10.0.2.2,port={server.port},vers=4.1,nosharecache,noresvport"
        self.run(f"mkdir /host{place} && mount -t nfs4 -o {options} 10.0.2.2:{EXPORT} /host{place}")
        return place

    def kill(self) -> None:
        """The power goes: nothing is flushed or closed."""
        self._process.kill()
        self._process.wait()


def _kernel() -> tuple[Path, Path]:
    """A kernel, and the file system that it begins with, which the first process of this machine makes."""
    lacking = [program for program in _PROGRAMS if shutil.which(program) is None]
    if lacking:
        pytest.skip(f"needs {', '.join(lacking)}: apt-get install qemu-system-x86 busybox-static")
    kernel, initial = _CACHE / "vmlinuz", _CACHE / "initial"
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kernel.exists():
            package = _unpacked()
            (image,) = package.glob("boot/vmlinuz-*")
            shutil.copy(image, _CACHE / "fresh")
            (modules,) = package.glob("lib/modules/*")
            _make_initial(modules, initial)
            (_CACHE / "fresh").rename(kernel)
            shutil.rmtree(package)
    return kernel, initial


def _unpacked() -> Path:
    """The package of Debian's newest kernel."""
    about = subprocess.run(["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True, check=False)
    names = [line.split()[-1] for line in about.stdout.splitlines() if "Depends: linux-image-" in line]
    done = subprocess.run(["apt-get", "download", *names], cwd=_CACHE, capture_output=True, text=True, check=False)
    packages = [*_CACHE.glob("linux-image-*.deb")]
    if not names or not packages:
        pytest.skip(f"no kernel could be had from Debian: {done.stderr[-500:]}")
    folder = _CACHE / "package"
    subprocess.run(["dpkg-deb", "-x", packages[0], folder], check=True)
    packages[0].unlink()
    return folder


def _make_initial(modules: Path, place: Path) -> None:
    folder = _CACHE / "files"
    for name in ("bin", "dev", "host", "lib", "proc", "sys"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(str(shutil.which("busybox")), folder / "bin" / "busybox")
    files = {path.name.removesuffix(".ko").replace("-", "_"): path for path in modules.rglob("*.ko")}
    order: list[str] = []
    for name in _MODULES:
        _add_module(files, name, order)
    for name in order:
        shutil.copy(files[name], folder / "lib" / f"{name}.ko")
    (folder / "modules").write_text("\n".join(f"{name}.ko" for name in order))
    (folder / "init").write_text(_INIT)
    (folder / "init").chmod(0o755)
    with place.open("wb") as archive:
        names = subprocess.run(["find", "."], cwd=folder, check=True, capture_output=True).stdout
        subprocess.run(["busybox", "cpio", "-o", "-H", "newc"], cwd=folder, check=True, input=names, stdout=archive)
    shutil.rmtree(folder)


def _add_module(files: dict[str, Path], name: str, order: list[str]) -> None:
    """After those that it depends on, as its own file says."""
    if name in order:
        return
    _, _, rest = files[name].read_bytes().partition(b"\0depends=")
    for needed in filter(None, rest.partition(b"\0")[0].decode().split(",")):
        _add_module(files, needed.replace("-", "_"), order)
    order.append(name)


@pytest.fixture
def guests(tmp_path: Path) -> Iterator[GuestMaker]:
    """Starts a guest on each call."""
    kernel, initial = _kernel()
    started: list[Guest] = []

    def start() -> Guest:
        started.append(Guest(tmp_path / f"guest-{len(started)}", f"guest-{len(started)}", kernel, initial))
        return started[-1]

    with ExitStack() as stack:
        stack.callback(lambda: [guest.kill() for guest in started])
        yield start
