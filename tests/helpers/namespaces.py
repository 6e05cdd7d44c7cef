"""Whether this process may mount file systems that only its children see."""

from __future__ import annotations

import shutil
import subprocess

MOUNTING = ("unshare", "-m")
"""Before the command of a child that mounts."""
WHY_NOT = "this process may not make mount namespaces (unshare -m)"


def may_mount() -> bool:
    command = [*MOUNTING, "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    return bool(shutil.which("unshare")) and subprocess.run(command, capture_output=True, check=False).returncode == 0
