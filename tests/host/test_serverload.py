"""The processes of a server on this host."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from model_optimizer.host.serverload import local_server

SERVER = """
import socket, subprocess, sys, time
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen()
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print(s.getsockname()[1], child.pid, flush=True)
time.sleep(60)
"""


def test_sees_the_server_and_what_it_started():
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port, child = map(int, server.stdout.readline().split())
        try:
            found = local_server("127.0.0.1", port)
            assert found is not None
            before = found.cpu_seconds()
            assert {server.pid, child} <= before.keys()
            time.sleep(0.6)
            after = found.cpu_seconds()
            assert after[child] - before[child] > 0.1
            assert after[server.pid] - before[server.pid] < 0.2
        finally:
            subprocess.run(["kill", str(child), str(server.pid)], check=False)
    assert found.cpu_seconds() == {}


@pytest.mark.parametrize("host", ["192.0.2.1", "example.invalid", ""])
def test_a_server_elsewhere_is_not_looked_for(host):
    assert local_server(host, 80) is None


def test_a_port_that_nobody_listens_on():
    assert local_server("localhost", 9) is None
