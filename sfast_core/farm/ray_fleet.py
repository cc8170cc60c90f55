"""Workers as actors of Ray, one a GPU, on all machines of its cluster.

The only file that knows Ray's Python API, and only when it is used.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from . import comfy, worker
from .errors import FarmError
from .fleet import Event, Slot
from .store import Task

RESOURCE = "fast_compile_worker"  #: of a machine: how many workers belong there
_LOOK_S = 5.0  #: how often workers are looked at
_NODES_S = 2.0  #: how often machines are
_CONNECT_S = 180.0


def require_ray() -> None:
    """Without importing it, as it reads its settings from the environment when it is imported.

    Raises:
        FarmError: it isn't installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise FarmError('a farm runs on Ray, which isn\'t installed here: pip install "ray[default]"')


def _imported_ray() -> ModuleType:
    """Ray, told which modules travel to the other machines, whose versions of this pack don't matter then."""
    import ray
    from ray import cloudpickle

    for module in (comfy, worker):
        cloudpickle.register_pickle_by_value(module)
    return ray


class RayFleet:
    """A :class:`.fleet.Fleet` over the cluster at ``address``, as long as its processes here are alive."""

    def __init__(self, address: str, is_alive: Callable[[], bool]) -> None:
        self._ray = ray = _imported_ray()
        self._is_alive = is_alive
        self.dashboard = _connected(ray, address, is_alive)
        self._texts = worker.texts()
        self._actors: dict[str, Any] = {}
        self._slots: dict[str, Slot] = {}
        self._folders: dict[str, Path] = {}
        self._pending: dict[Any, tuple[str, str]] = {}  # what was asked: whom, what
        self._looked: dict[str, float] = {}
        self._nodes: list[dict[str, Any]] = []
        self._nodes_at = float("-inf")

    def slots(self) -> list[Slot]:
        """As many on each machine as it was started or joined with."""
        now = time.monotonic()
        if now - self._nodes_at > _NODES_S:
            self._nodes, self._nodes_at = self._ray.nodes(), now
        return [
            Slot(node["NodeID"], number)
            for node in self._nodes
            if node["Alive"]
            for number in range(int(node["Resources"].get(RESOURCE, 0)))
        ]

    def start(self, slot: Slot, worker_name: str) -> None:
        """As an actor that Ray doesn't restart: the head decides when."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        has: dict[str, float] = next((node["Resources"] for node in self._nodes if node["NodeID"] == slot.machine), {})
        remote = self._ray.remote(concurrency_groups={"beside": 1})(_with_groups(self._ray, worker.Worker))
        actor = remote.options(
            num_cpus=0,
            num_gpus=min(1.0, has.get("GPU", 0.0) / has.get(RESOURCE, 1.0)),
            resources={RESOURCE: 1},
            scheduling_strategy=NodeAffinitySchedulingStrategy(slot.machine, soft=False),
            max_restarts=0,
        ).remote(worker_name, *self._texts)
        self._actors[worker_name], self._slots[worker_name] = actor, slot
        self._ask(worker_name, "ready", actor.start.remote())

    def run(self, worker_name: str, task: Task, limit_s: float) -> None:
        """In the actor, which waits for it."""
        self._ask(worker_name, "outcome", self._actors[worker_name].run.remote(task.prompt, task.extra, limit_s))

    def end(self, worker_name: str) -> None:
        """Kill the actor; its ComfyUI ends with it."""
        actor = self._forget(worker_name)
        if actor is not None:
            self._ray.kill(actor, no_restart=True)

    def events(self, wait_s: float) -> list[Event]:
        """What actors have answered, or that they can't."""
        if not self._is_alive():
            raise FarmError("Ray has ended on this machine; start the farm again: its queue is kept")
        now = time.monotonic()
        for name, at in list(self._looked.items()):
            if now - at > _LOOK_S:
                self._looked[name] = float("inf")  # until it has answered
                self._ask(name, "use", self._actors[name].look.remote())
        if not self._pending:
            time.sleep(wait_s)
            return []
        done, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=wait_s)
        more, _ = self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)
        found = []
        for future in dict.fromkeys([*done, *more]):
            asked = self._pending.pop(future, None)
            if asked is not None:
                found += self._answer(future, *asked)
        return found

    def close(self) -> None:
        """End all workers, and leave the cluster."""
        if not self._is_alive():
            return  # and with it all workers
        stops = [actor.stop.remote() for actor in self._actors.values()]
        if stops:
            self._ray.wait(stops, num_returns=len(stops), timeout=15)
        for name in list(self._actors):
            self.end(name)
        self._ray.shutdown()

    def _ask(self, worker_name: str, kind: str, future: Any) -> None:
        self._pending[future] = (worker_name, kind)

    def _answer(self, future: Any, name: str, kind: str) -> list[Event]:
        try:
            data: dict[str, Any] = self._ray.get(future)
        except self._ray.exceptions.RayError as error:
            return [self._lost(name, error)]
        if kind == "ready":
            if "error" in data:
                return [self._ended(name, data["error"], data["log"])]
            self._folders[name] = Path(data["folder"])
        if kind == "use" and not data.pop("alive"):
            # While a job runs, who waits for it tells more.
            busy = any(asked == (name, "outcome") for asked in self._pending.values())
            return [] if busy else [self._ended(name, "ComfyUI ended while it had nothing to do", "")]
        self._looked[name] = time.monotonic()
        return [Event(name, kind, data)]

    def _ended(self, name: str, reason: str, log: str) -> Event:
        """A worker whose ComfyUI is no more is of no use."""
        self.end(name)
        return Event(name, "lost", {"reason": reason, "log": log})

    def _lost(self, name: str, error: Exception) -> Event:
        slot, folder = self._slots[name], self._folders.get(name)
        self._nodes, self._nodes_at = self._ray.nodes(), time.monotonic()
        gone = not any(node["NodeID"] == slot.machine and node["Alive"] for node in self._nodes)
        self._forget(name)
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = "its machine is gone" if gone else f"its process ended: {' '.join(lines[-2:]) or type(error).__name__}"
        return Event(name, "lost", {"reason": reason, "log": _end_of_log(folder), "machine_gone": gone})

    def _forget(self, name: str) -> Any:
        self._pending = {future: asked for future, asked in self._pending.items() if asked[0] != name}
        self._looked.pop(name, None)
        self._folders.pop(name, None)
        return self._actors.pop(name, None)


def _connected(ray: ModuleType, address: str, is_alive: Callable[[], bool]) -> str | None:
    """Connect; where Ray's dashboard is. Ray's own patience is for machines that have nothing else to do."""
    end = time.monotonic() + _CONNECT_S
    while True:
        try:
            context = ray.init(
                address=address, namespace="fast-compile-farm", log_to_driver=False, logging_level="error"
            )
            return context.dashboard_url or None
        except (ConnectionError, RuntimeError, ValueError) as error:
            ray.shutdown()
            if not is_alive() or time.monotonic() > end:
                raise FarmError(f"Ray at {address} doesn't answer: {error}") from None


def _with_groups(ray: ModuleType, made: type[worker.Worker]) -> type:
    """The class, with ``look`` in a thread of its own, so that it answers while a job runs."""
    return type(
        made.__name__,
        (made,),
        {"look": ray.method(concurrency_group="beside")(made.look), "__module__": made.__module__},
    )


def _end_of_log(folder: Path | None) -> str:
    """Of a worker whose process can't be asked, where it is on this machine."""
    try:
        return (folder / "comfyui.log").read_bytes()[-4000:].decode("utf-8", "replace") if folder else ""
    except OSError:
        return ""
