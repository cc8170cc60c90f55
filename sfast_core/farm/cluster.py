"""Ray's own processes on this machine, as a child that ends with us: the head's, or those of a machine that joins."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import leash
from .comfy import free_port, let_go
from .errors import FarmError
from .ray_fleet import RESOURCE
from .worker import SETTINGS

_UP_S = 180.0
_STORE_BYTES = 512 * 2**20  #: for results on their way; more is spilled to the disk
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_loopback(host: str) -> bool:
    """Whether nobody else reaches it."""
    return host in _LOOPBACK


def environment(token: Path, host: str, settings: dict[str, Any]) -> dict[str, str]:
    """What Ray's processes see: a token that each asks for, nothing reported to anybody, and the workers' settings."""
    found = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_prestart_worker_first_driver": "0",  # processes that no worker of ours uses
        # on a busy machine a process starts slowly, and Ray would end it and start another
        "RAY_worker_register_timeout_seconds": "600",
        SETTINGS: json.dumps(settings),
    }
    if is_loopback(host):
        # Else Ray looks for an address that others reach, and listens on all. It is Ray's switch for systems where it
        # keeps to loopback.
        found["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    return found


class Cluster:
    """Ray on this machine.

    Args:
        options: of ``ray start``, which say whether it is the head.
        variables: from :func:`environment`.
        log: where it prints.
    """

    def __init__(self, options: Sequence[str], variables: dict[str, str], log: Path) -> None:
        os.environ.update(variables)  # Ray reads them in this process, too, when it is imported
        command = [
            sys.executable,
            str(leash.__file__),
            "-m",
            "ray.scripts.scripts",
            "start",
            "--block",
            "--disable-usage-stats",
            *options,
        ]
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT, start_new_session=os.name != "nt"
            )

    def wait_for(self, host: str, port: int) -> None:
        """Until the head's port answers. Raises :class:`FarmError` where it doesn't come up."""
        end = time.monotonic() + _UP_S
        while time.monotonic() < end and self.is_alive():
            try:
                socket.create_connection((host, port), 1).close()
                return
            except OSError:
                time.sleep(0.2)
        self.stop()
        raise FarmError(f"Ray didn't start:\n{self.log_end()}")

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def wait(self) -> int:
        """Until it ends."""
        return self._process.wait()

    def log_end(self) -> str:
        """The end of what it printed."""
        return self._log.read_bytes()[-3000:].decode("utf-8", "replace")

    def stop(self) -> None:
        """End it, and what it has started."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        let_go(self._process)


def head_options(host: str, port: int, dashboard_port: int | None, workers: int) -> list[str]:
    """Of ``ray start`` for the machine with the head. No ``dashboard_port``: without a dashboard."""
    found = ["--head", f"--node-ip-address={host}", f"--port={port}", *_machine_options(workers)]
    if dashboard_port is None:
        return [*found, "--include-dashboard=false"]
    return [*found, "--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard_port}"]


def join_options(address: str, workers: int) -> list[str]:
    """Of ``ray start`` for a machine that joins the head at ``address``."""
    return [f"--address={address}", *_machine_options(workers)]


def _machine_options(workers: int) -> list[str]:
    """With ports for Ray's helpers, which otherwise say which they took: too late for it on a busy machine."""
    helpers = (
        "dashboard-agent-grpc-port",
        "dashboard-agent-listen-port",
        "metrics-export-port",
        "runtime-env-agent-port",
    )
    ports = [f"--{helper}={free_port()}" for helper in helpers]
    return [
        f"--resources={json.dumps({RESOURCE: workers})}",
        f"--object-store-memory={_STORE_BYTES}",
        "--include-log-monitor=false",
        *ports,
    ]
