"""The compiled state of one module of ComfyUI's, and how it gets under the module for the length of a call."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ...capture import CaptureError
from ...config import CompileConfig
from ...engine import Engine, Forward
from ...machine.forks import renew_in_children
from ...reporting.reason import COMFY, told
from ...reporting.reasons.hosts import NODE_REPLACES, NOT_HOOKED, PAST_NODE
from ...reporting.report import ModuleReport
from ...runtime.store import WeightStore
from ..fallback import with_fallback
from ..hook import Hook, HookedCall
from ..layer_tables import LayerTables
from ..live import LiveCalls
from ..options import PROMPTS, Steering, options_of
from .by_blocks import ByBlocks
from .dynamic import DynamicStore
from .events import LineAPrompt
from .leaves import casting_leaves
from .memory import keep_listed, make_room
from .obstacles import Obstacles, why_left_alone
from .offload import ComfyOffload
from .reach import Reach

log = logging.getLogger("fast_compile")


Through = Callable[[Any, tuple[Any, ...], dict[str, Any], Callable[[], Any]], Any]
_APPLY = "_apply_model"  #: of a BaseModel: what ComfyUI's apply_model calls behind all wrappers


class _Watch:
    """A forward pre-hook that tells the state of each call. A copy of the model has no state: there it does nothing."""

    def __init__(self, state: HookedState | None) -> None:
        self._state = state

    def __call__(self, module: torch.nn.Module, args: Any) -> None:
        if self._state is not None:
            self._state.before_call(module)

    def __deepcopy__(self, memo: Any) -> _Watch:
        return _Watch(None)


class HookedState:
    """The compiled state of one module of the host's. Lives as long as that does and holds nothing of it.

    Attributes:
        config: what the node was told.
        base_model: a weak reference to what a patcher calls its model; the compiled module is that or below it.
    """

    def __init__(self, owner: torch.nn.Module, engine: Engine, config: CompileConfig) -> None:
        self.config = config
        self.engine = engine
        self.base_model = weakref.ref(owner)
        self._obstacles = Obstacles()
        self._lock = threading.Lock()
        renew_in_children(self)
        self._inside: Counter[int] = Counter()  # how deep each thread is in calls through the node
        self._installed: Hook | None = None
        self._watch: Any = None
        self._live = LiveCalls(engine)
        self._by_blocks: ByBlocks | None = None

    def engines(self) -> list[Engine]:
        """All that it compiles with."""
        return [self.engine, *(self._by_blocks.engines() if self._by_blocks is not None else [])]

    def reports(self) -> list[ModuleReport]:
        """What became of its calls, and of the blocks' together where they were called one by one."""
        return [self.engine.report, *(self._by_blocks.reports() if self._by_blocks is not None else [])]

    def renew(self) -> None:
        """Start afresh in a forked child process, where the other threads aren't."""
        self._lock = threading.Lock()
        thread = threading.get_ident()
        self._inside = Counter({thread: depth} if (depth := self._inside[thread]) else {})

    # -- around a call through the node -----------------------------------------------------------------------------

    @contextmanager
    def installed(self, model: torch.nn.Module) -> Iterator[None]:
        """For this call, let ``model`` compute its forward by the engine: for this thread, and for calls within this
        one too.
        """
        thread = threading.get_ident()
        depth = self._inside[thread]
        try:
            with self._lock:
                self._inside[thread] = depth + 1
                if self._installed is None:
                    try:
                        self._install(model)
                    except Exception:  # then it runs as it was
                        log.warning(
                            "Fast Compile: %s can't be hooked and runs as it was; please report it",
                            self.engine.report.name,
                            exc_info=True,
                        )
            yield
        finally:
            with self._lock:
                self._inside[thread] = depth
                if not depth:
                    del self._inside[thread]
                if not self._inside:
                    self._uninstall()

    def _look_out(self, model: torch.nn.Module) -> None:
        # the first time, or others cleared the hooks
        if self._watch is None or self._watch.id not in model._forward_pre_hooks:
            self._watch = model.register_forward_pre_hook(_Watch(self))

    def _install(self, model: torch.nn.Module) -> None:
        self._look_out(model)

        def through(call: HookedCall) -> Any:
            inside = threading.get_ident() in self._inside  # or another thread, which samples without the node
            return self._call(call) if inside else call.eager()

        # first: it is taken off again, whatever comes between
        self._installed = Hook(model, through, self._hooked(model), NODE_REPLACES)
        self._installed.put()

    def _hooked(self, model: torch.nn.Module) -> str:
        """The name of the method that is replaced."""
        return "forward"

    def _uninstall(self) -> None:
        if self._installed is not None:
            self._installed.remove()
        self._installed = None

    # -- the call ---------------------------------------------------------------------------------------------------

    def _call(self, call: HookedCall) -> Any:
        import comfy.model_management

        # The host looks for the user's Cancel inside each layer; a replay has no layers.
        comfy.model_management.throw_exception_if_processing_interrupted()
        interrupted = comfy.model_management.InterruptProcessingException
        self.engine.interruptions = (interrupted,)

        def attempt(eager: Callable[[], Any]) -> Any:
            if reason := call.foreign or self._obstacles.reason(
                self.base_model(), call.module, self._hooked(call.module), options_of(call.args, call.kwargs)
            ):
                if self._by_blocks is not None and told(reason).code == NODE_REPLACES.code:
                    return self._by_blocks.call(call.module, reason, eager)
                raise CaptureError(reason)
            result = self._live(
                call,
                lambda traced, steering: self._compute(call.module, traced, steering, eager),
                (interrupted,),
            )
            for on in self.engine.devices:
                keep_listed(on.graphs, on.device)
            for held, device in self.engine.several.others.held():
                keep_listed(held, device)
            return result

        return with_fallback(self.engine, attempt, call.eager)

    def _compute(self, model: torch.nn.Module, traced: Forward, steering: Steering, eager: Callable[[], Any]) -> Any:
        return self.engine.call(model, traced, steering.args, steering.kwargs, eager, steering.around)

    # -- around calls without the node ------------------------------------------------------------------------------

    def before_call(self, model: torch.nn.Module) -> None:
        """The model is about to be called. Where that isn't by our node, it gets the very weights that it had, and the
        graphs' memory is freed.
        """
        if self._inside or self._watch is None:
            return
        try:
            for engine in self.engines():
                engine.restore()
            if not self._may_come_back():
                self._watch.remove()
                self._watch = None
        except Exception:
            log.warning("Fast Compile: %s couldn't get its plain weights back", self.engine.report.name, exc_info=True)

    def _patcher(self) -> Any:
        """A patcher of the model's, which shares with its clones what the host keeps of replaced weights; None where
        there is none.
        """
        return getattr(self.base_model(), "current_patcher", None)

    def _may_come_back(self) -> bool:
        """Whether the host keeps weights as the engine laid them out, to put them back when a LoRA goes."""
        patcher = self._patcher()
        return patcher is None or bool(getattr(patcher, "backup", None) or getattr(patcher, "hook_backup", None))

    def after_sampling(self) -> None:
        """A sampling is over. Whatever nodes do with the model next finds weights that lie as the host's do, so that
        ``weight.view(channels, -1)`` works.
        """
        if not self._inside:
            for engine in self.engines():
                engine.lay_plain()

    def on_load(self) -> None:
        """The host makes the model ready: under dynamic VRAM what it has unloaded meanwhile is asked for again."""
        for engine in self.engines():
            if isinstance(engine.store, DynamicStore):
                engine.store.ask_again()

    def on_detach(self, unload: bool) -> None:
        """The host takes the model off the GPU (``unload``), or only this patcher off the model."""
        for engine in self.engines() if unload else ():
            engine.release_graphs()

    def close(self) -> None:
        """Leave the model as it was found: another state takes over."""
        if self._watch is not None:
            self._watch.remove()
            self._watch = None
        for engine in self.engines():
            engine.restore()
            engine.reset()


class ModelState(HookedState):
    """The compiled state of one BaseModel: its diffusion model's."""

    def __init__(self, base_model: torch.nn.Module, config: CompileConfig) -> None:
        name = type(getattr(base_model, "model_config", base_model)).__name__  # SD15 rather than BaseModel
        super().__init__(base_model, engine_of(base_model, name, config, _is_dynamic(base_model)), config)
        self.engine.report.pixels = int(
            getattr(getattr(base_model, "latent_format", None), "spacial_downscale_ratio", 8)
        )
        self._reach: dict[int, Reach | None] = {}  # of each thread's call through the node
        self._expected = False
        self._led_in: Hook | None = None  # for the length of a sampling
        self._layers = LayerTables()
        self._by_blocks: ByBlocks = ByBlocks(
            self.engine.reporter,
            self.engine.store,
            partial(_engine_of_block, self.base_model, weakref.ref(self.engine), config),
        )
        self.engine.in_parts = self._by_blocks.call

    def _hooked(self, model: torch.nn.Module) -> str:
        # inside of others' wrappers, where its class has that; another node may have given the model another class
        return "_forward" if hasattr(type(model), "_forward") else "forward"

    def through(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[[], Any]) -> Any:
        """What ``call`` returns, a call through the node that leads to the model's forward: where it doesn't, that is
        counted.
        """
        thread, options = threading.get_ident(), options_of(args, kwargs)
        outer = self._reach.get(thread)
        try:
            if reason := why_left_alone(model, options):
                self._reach[thread] = None
                return self.engine.run_eager(reason, call)
            if reason := self._by_blocks.why(model):
                self._reach[thread] = None
                return self._by_blocks.call(model, reason, call)
            reach = self._reach[thread] = Reach(model)
            try:
                with self.installed(model):
                    hooked = self._installed is not None
                    result = call()
            except BaseException:
                reach.leave()
                raise
            if hooked:
                if reach.end(self.engine, model, options):
                    self._by_blocks.walked(model)
            else:
                reach.leave()
                self.engine.reporter.ran_eager(NOT_HOOKED())
            return result
        finally:
            if outer is None:
                del self._reach[thread]
            else:
                self._reach[thread] = outer

    def expect(self, model: torch.nn.Module, options: Mapping[str, Any], through: Through) -> None:
        """A sampling through the node begins, with these transformer options: each call is to come through it.

        One that has lost our wrapper (another node copied the options before ours, or put its own wrappers in the place
        of all that were there) is led to ``through`` where ``apply_model`` ends.
        """
        if why_left_alone(model, options) is None:
            self._expected = True
            self._layers.put_back(model)
            self._lead_in(through)
            self.engine.store.begin_sampling()
            for engine in self.engines():
                engine.taken_in.begin_sampling()
            self._look_out(model)

    def _lead_in(self, through: Through) -> None:
        base_model = self.base_model()
        if base_model is None or self._led_in is not None or not hasattr(type(base_model), _APPLY):
            return

        def apply(call: HookedCall) -> Any:
            if threading.get_ident() in self._reach:
                return call.eager()
            return through(call.module, call.args, call.kwargs, call.eager)

        self._led_in = Hook(base_model, apply, _APPLY).put()

    def after_sampling(self) -> None:
        """As there; the model is called by itself again, and the host's promise about weights ends."""
        self._expected = False
        if self._led_in is not None:
            self._led_in.remove()
            self._led_in = None
        self.engine.store.end_sampling()
        if (model := getattr(self.base_model(), "diffusion_model", None)) is not None:
            for on in self.engine.devices:
                on.let_go(model, self.engine.taken_in.sampling)
        super().after_sampling()

    def before_call(self, model: torch.nn.Module) -> None:
        """As there. Within a sampling through the node graphs stay, and a call that came past the node is counted."""
        if self._inside or not self._expected:
            return super().before_call(model)
        if threading.get_ident() not in self._reach:
            self.engine.reporter.ran_eager(PAST_NODE())
        self.engine.lay_plain()  # the next call may come through the node again: graphs stay

    def _call(self, call: HookedCall) -> Any:
        reach = self._reach.get(threading.get_ident())
        if reach is not None:
            reach.arrived()
        if getattr(self._patcher(), "injections", None):
            self._layers.put_back(call.module)
        return super()._call(call)


def _engine_of_block(
    owner: Callable[[], Any], of_model: Callable[[], Engine | None], config: CompileConfig, name: str
) -> Engine:
    """The engine of one of a model's blocks. It holds nothing of the model or of its state, which are to be freed
    without the collector.
    """
    engine = engine_of(owner(), name, replace(config, adopt_weights=False, devices=None), _is_dynamic(owner()))
    whole = of_model()
    engine.interruptions = whole.interruptions if whole is not None else ()
    return engine


def _is_dynamic(base_model: torch.nn.Module) -> bool:
    """Whether a model is loaded by dynamic VRAM. It stays so: without that, another BaseModel samples."""
    return bool(getattr(getattr(base_model, "current_patcher", None), "is_dynamic", bool)())


#: One for all models: a picture that several of them make gets one line.
_LINE = LineAPrompt()


def engine_of(owner: torch.nn.Module, name: str, config: CompileConfig, dynamic: bool) -> Engine:
    """The engine of a module that is ``owner`` or below it. ``dynamic``: the host loads it by dynamic VRAM."""
    if dynamic:
        engine = Engine(name, replace(config, adopt_weights=False), casting_leaves, DynamicStore(owner), COMFY)
    else:
        engine = Engine(name, config, casting_leaves, WeightStore(ComfyOffload(owner)), host=COMFY)
    engine.reporter.may_say = _LINE
    engine.several.others.make_room, engine.several.apart = make_room, PROMPTS
    return engine
