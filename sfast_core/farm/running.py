"""``start`` and ``join``: what runs on a machine of a farm until it is stopped."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..reporting.terminal import Say
from .cluster import Cluster, environment, head_options, is_loopback, join_options
from .comfy import free_port
from .desk import Desk
from .errors import FarmError
from .head import Head
from .home import Home, read_token
from .machine import Machine, room
from .ray_fleet import RayFleet
from .store import Store

_TRIES = 3


class Ports(NamedTuple):
    """Where a farm listens.

    Attributes:
        host: an address of this machine.
        desk: the port for jobs; 0: any.
        ray: the port for machines that join; 0: any.
        dashboard: Ray's dashboard's port; None: without one.
    """

    host: str
    desk: int
    ray: int
    dashboard: int | None


def start(home: Home, output: Path, ports: Ports, machine: Machine, limit_s: float, say: Say) -> int:
    """Run a head and this machine's workers until somebody stops them; the exit code.

    Args:
        home: the farm's own folder.
        output: the folder of results.
        ports: where it listens.
        machine: what this one brings; 0 workers: the head alone.
        limit_s: after how long a job is given up.
        say: tells people.
    """
    listen = ports.host
    settings = machine.settings(home.workers) if machine.workers != 0 else {}
    count = 0 if machine.workers == 0 else room(machine.workers)
    with home.held():
        token, _ = home.tokens()
        shutil.rmtree(home.workers, ignore_errors=True)  # of those that were killed
        store = Store(home.queue)
        variables = environment(home.cluster_token, listen, settings)
        cluster, fleet, address = _start_ray(ports, count, variables, home.path / "ray.log", say)
        try:
            head = Head(store, fleet, output, lambda text: say(text, ""), limit_s)
            about = {
                "dashboard": f"http://{fleet.dashboard}" if fleet.dashboard else None,
                "output": str(output),
                "cluster": address,
            }
            desk = Desk(head, token, listen, ports.desk, about)
            home.tell(address=f"{listen}:{desk.port}")
            _introduce(home, f"{listen}:{desk.port}", address, about, is_loopback(listen), say)
            with _until_told(head):
                head.run()
            desk.close()
            say("the farm has ended; what waits is kept in its queue", "bold")
        finally:
            cluster.stop()
            store.close()
    return 0


def _start_ray(
    ports: Ports, workers: int, variables: dict[str, str], log: Path, say: Say
) -> tuple[Cluster, RayFleet, str]:
    """Ray's processes, a connection and its address.

    On a busy machine they may not come up in the time that Ray gives itself: tried again.
    """
    host = ports.host
    for left in reversed(range(_TRIES)):
        chosen = ports.ray or free_port()
        say("starting Ray", "")
        cluster = Cluster(head_options(host, chosen, ports.dashboard, workers), variables, log)
        try:
            cluster.wait_for(host, chosen)
            return cluster, RayFleet(f"{host}:{chosen}", cluster.is_alive), f"{host}:{chosen}"
        except FarmError as error:
            cluster.stop()
            if not left:
                raise
            say(str(error).splitlines()[-1], "yellow")
        except BaseException:
            cluster.stop()
            raise
    raise FarmError("Ray did not start")


def join(address: str, token: Path, machine: Machine, folder: Path, say: Say) -> int:
    """Run this machine's workers for the cluster at ``address`` until either ends; the exit code."""
    read_token(token)
    settings, count = machine.settings(folder), room(machine.workers)
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(
        join_options(address, count), environment(token, address.rpartition(":")[0], settings), folder / "ray.log"
    )
    say(f"{count} workers of this machine join the farm at {address}; Ctrl-C takes them away again", "bold")
    try:
        code = cluster.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
    raise FarmError(f"Ray ended with {code}:\n{cluster.log_end()}")


def _introduce(home: Home, desk: str, cluster: str, about: dict[str, Any], alone: bool, say: Say) -> None:
    say(f"the farm is at {desk}; its token is in {home.token}", "bold green")
    say(f"results go into {about['output']}", "")
    if about["dashboard"]:
        say(f"Ray's dashboard: {about['dashboard']}, with the token in {home.cluster_token}", "")
    if alone:
        say("other machines can't join: it listens on this one alone (--listen ADDRESS lets them)", "")
    else:
        say(
            f"other machines join with: python -m sfast_core.farm join {cluster} --token-file FILE, with a copy of"
            f" {home.cluster_token}",
            "",
        )


@contextmanager
def _until_told(head: Head) -> Iterator[None]:
    """Ctrl-C and a polite kill end the farm at once; its queue is kept."""

    def end(number: int, frame: object) -> None:
        head.stop(at_once=True)

    kept = {}
    for each in (signal.SIGINT, signal.SIGTERM):
        with suppress(ValueError):  # not in the main thread
            kept[each] = signal.signal(each, end)
    try:
        yield
    finally:
        for each, before in kept.items():
            signal.signal(each, before)
