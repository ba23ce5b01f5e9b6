"""CPU and GPU use of a server on this host, found by the port it listens on. Reads only; what is hidden is left out."""

from __future__ import annotations

import contextlib
import ipaddress
import shutil
import socket

import psutil

from model_optimizer.errors import HostError, TimedOut
from model_optimizer.host.process import run

_NVIDIA_SMI_TIMEOUT_S = 5.0


class LocalServer:
    """The processes of one server: those that listen on the port, their launcher, and all below it."""

    def __init__(self, pids: frozenset[int]) -> None:
        self._roots = pids
        self._nvidia_smi = shutil.which("nvidia-smi")

    def cpu_seconds(self) -> dict[int, float]:
        """CPU time so far by process id; of a process that has ended there is none."""
        found: dict[int, float] = {}
        for pid in self._roots:
            with contextlib.suppress(psutil.Error):
                root = psutil.Process(pid)
                for process in (root, *root.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        times = process.cpu_times()
                        found[process.pid] = times.user + times.system
        return found

    def gpu_busy(self) -> float | None:
        """Utilization of the busiest GPU as the driver says it, 0 to 1; ``None`` where there is none."""
        if self._nvidia_smi is None:
            return None
        ask = [self._nvidia_smi, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        try:
            done = run(ask, timeout_s=_NVIDIA_SMI_TIMEOUT_S)
        except (HostError, TimedOut):
            self._nvidia_smi = None
            return None
        values = [int(line) for line in map(str.strip, done.tail) if line.isdigit()]
        return max(values) / 100 if done.returncode == 0 and values else None


def local_server(host: str, port: int) -> LocalServer | None:
    """The server behind this address, where it is this host and its processes may be seen."""
    if not _is_here(host):
        return None
    try:
        listening = {
            c.pid
            for c in psutil.net_connections(kind="tcp")
            if c.status == psutil.CONN_LISTEN and c.pid and c.laddr and c.laddr.port == port
        }
    except psutil.Error:
        return None
    roots = {_launcher(pid) for pid in listening}
    return LocalServer(frozenset(roots)) if roots else None


def _launcher(pid: int) -> int:
    """The parent where it runs the same program: servers with several API processes have one above them."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        parent = process.parent()
        if parent is not None and parent.pid != 1 and parent.cmdline()[1:2] == process.cmdline()[1:2]:
            return parent.pid
    return pid


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError, OSError):
        address = ipaddress.ip_address(host)
        own = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
        return address.is_loopback or str(address) in own
    return host == socket.gethostname()
