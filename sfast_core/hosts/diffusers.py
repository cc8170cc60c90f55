"""Compiles the models of a diffusers pipeline.

The models stay the objects that they are, with a compiled forward on the instance, so that everything that works on
them keeps working: LoRAs, ``to``, ``save_pretrained``, schedulers, other pipelines that share them. A VAE's ``decode``
isn't its forward; its ``decoder`` and ``encoder`` are compiled instead, and slicing, tiling and the posterior around
them stay diffusers'. Nothing here imports ``diffusers``: whoever has a pipeline has imported it.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from ..compiled import CompiledModule, compile, described, is_compiled
from ..config import CompileConfig
from ..fast_forward import MARK, as_it_is
from ..libraries.offloading import offloads
from ..quality.levels import EXACT
from ..reporting.report import ModuleReport, Report, versions
from .vae import HALVES

#: A pipeline's attributes with models, in the order of the report. Others follow in the pipeline's own order.
_MODELS = (
    "unet",
    "transformer",
    "transformer_2",
    "controlnet",
    "text_encoder",
    "text_encoder_2",
    "text_encoder_3",
    "vae",
)
_STEPS = "num_inference_steps"
_DENOISERS = ("unet", "transformer")  # the beginnings of denoisers' names
_HALVES = ("encoder", "decoder")  # of an autoencoder
_DECODES = ("encode", "decode")  # a model with one of these methods is an autoencoder
_CHECKS = "safety_checker"
_CALLBACKS = ("callback", "callback_on_step_end")
_PLACE = "_fast_compile_pipeline"  #: where a pipeline keeps the way to its handle


class CompiledPipeline:
    """A pipeline whose models are compiled. Call it, and read and set its attributes, as if it were the pipeline.

    A model that is put into the pipeline later (``fast.unet = other``) is compiled at the next call, and one that is
    taken out is given back as it was. A copied or pickled compiled pipeline contains a copy of the pipeline, compiled
    with the same config.

    Attributes:
        pipeline: the pipeline itself, the same object as before; called directly it is as fast.
    """

    pipeline: Any
    _compiled: dict[str, CompiledModule]

    def __init__(self, pipeline: Any, config: CompileConfig, installed: bool = True) -> None:
        self.__dict__.update(pipeline=pipeline, _config=config, _compiled={}, _installed=installed)
        if installed:
            self.configure(None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._installed:
            self._follow()
        with contextlib.ExitStack() as samplings:
            if not any(kwargs.get(name) for name in _CALLBACKS):  # a callback may write to weights
                for handle in self._compiled.values():
                    samplings.enter_context(handle.sampling(self._steps(kwargs)))
            return self.pipeline(*args, **kwargs)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The pipeline's class, for ``isinstance`` and diffusers' ``from_pipe``; ``type()`` tells the two apart."""
        return type(self.__dict__["pipeline"]) if "pipeline" in self.__dict__ else CompiledPipeline

    def __getattr__(self, name: str) -> Any:
        if "pipeline" not in self.__dict__:  # this object is just being copied
            raise AttributeError(name)
        return getattr(self.pipeline, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.pipeline, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.pipeline, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.pipeline)})

    def __copy__(self) -> CompiledPipeline:
        """A shallow copy shares the pipeline's models, which are compiled for both."""
        return CompiledPipeline(copy.copy(self.pipeline), self._config, self._installed)

    def __reduce__(self) -> Any:
        """``copy.deepcopy`` and ``pickle`` make models of their own, which are compiled anew."""
        return CompiledPipeline, (self.pipeline, self._config, self._installed)

    def __repr__(self) -> str:
        return f"CompiledPipeline({', '.join(self._compiled)}) of {self.pipeline!r}"

    def to(self, *args: Any, **kwargs: Any) -> CompiledPipeline:
        """As the pipeline's ``to``; returns this object. Models in another dtype or on another device are retraced."""
        self.pipeline.to(*args, **kwargs)
        return self

    def report(self) -> Report:
        """What became of each model: calls by path, what was fused, and why not faster where it isn't."""
        left_out = [
            ModuleReport(name, left_out=reason) for name, module, reason in _candidates(self.pipeline) if reason
        ]
        return Report([*(handle.engine.report for handle in self._compiled.values()), *left_out], versions())

    def uninstall(self) -> Any:
        """Give the pipeline back, with its models' own forwards and weight layouts. This object still runs it."""
        self.__dict__["_installed"] = False
        for name in list(self._compiled):
            self._give_back(name)
        if _in_use(self.pipeline) is self:
            del vars(self.pipeline)[_PLACE]
        return self.pipeline

    def configure(self, config: CompileConfig | None) -> None:
        """Compile the models with this config. None: with the present one, for models that were given back."""
        if config is not None:
            self.__dict__["_config"] = config
        self.__dict__["_installed"] = True
        vars(self.pipeline)[_PLACE] = _WayBack(self)
        self._follow()
        for name, handle in self._compiled.items():
            compile(handle, self._config_of(name))

    def _compile(self, name: str, module: torch.nn.Module) -> None:
        with _beneath_offloading(module):
            self._compiled[name] = compile(module, self._config_of(name), name)

    def _steps(self, kwargs: dict[str, Any]) -> int | None:
        """The number of steps of a call, if it is given by name or by default."""
        parameters = inspect.signature(type(self.pipeline).__call__).parameters
        steps = kwargs.get(_STEPS, parameters[_STEPS].default if _STEPS in parameters else None)
        return steps if isinstance(steps, int) else None

    def _config_of(self, name: str) -> CompileConfig:
        """The config for one model. Only denoisers, which run at each step, get a quality below exact and several GPUs.
        Halves of autoencoders get a limit for graphs, since those of large pictures save no time and hold gigabytes.
        """
        config = self._config if name.startswith(_DENOISERS) else self._config.replace(quality=EXACT, devices=None)
        most = HALVES.get(name.rpartition(".")[2]) if "." in name else None
        return config if most is None or config.graph_pixels is not None else config.replace(graph_pixels=most)

    def _give_back(self, name: str) -> None:
        handle = self._compiled.pop(name)
        with _beneath_offloading(handle.module):
            handle.uninstall()

    def _follow(self) -> None:
        """Compile models that are new in the pipeline, or that another pipeline sharing them has given back, and give
        back those that were taken out.
        """
        there = dict(models(self.pipeline))
        for name, handle in list(self._compiled.items()):
            if there.get(name) is not handle.module or _is_below_offloading(handle.module):
                self._give_back(name)
        for name, module in there.items():
            if name not in self._compiled or not is_compiled(module):
                self._compile(name, module)


def compile_pipeline(pipeline: Any, config: CompileConfig | None = None) -> CompiledPipeline:
    """Make the models of a diffusers pipeline fast: denoiser, VAE, text encoders, ControlNets, and any others.

    Args:
        pipeline: a ``diffusers.DiffusionPipeline``. Its models get a compiled forward until
            :meth:`CompiledPipeline.uninstall`. Models that are compiled already, for another pipeline that shares them,
            take this config. A pipeline that is compiled already, or its handle, gives its handle with this config.
        config: for all models; its quality and devices are used for the denoiser only. None: the defaults, or the
            present config of a compiled pipeline.

    Raises:
        TypeError: ``pipeline`` is no DiffusionPipeline, or ``config`` no CompileConfig.
        ValueError: the pipeline has no model to compile.
    """
    again = pipeline if isinstance(pipeline, CompiledPipeline) else _in_use(pipeline)
    if again is None and not _is_pipeline(pipeline):
        raise TypeError(f"compile_pipeline(pipeline): got {described(pipeline)}, needs a diffusers DiffusionPipeline")
    if config is not None and not isinstance(config, CompileConfig):
        raise TypeError(f"compile_pipeline(config): got {described(config)}, needs a CompileConfig or None")
    if again is not None:
        again.configure(config)
        return again
    if not dict(models(pipeline)):
        raise ValueError(
            f"compile_pipeline(pipeline): a {type(pipeline).__name__} has none of {', '.join(_MODELS)} to compile"
        )
    return CompiledPipeline(pipeline, config or CompileConfig())


class _WayBack:
    """From a pipeline to its handle, which it doesn't keep alive. A copied or pickled pipeline has no handle."""

    def __init__(self, handle: CompiledPipeline) -> None:
        self.handle = weakref.ref(handle)

    def __reduce__(self) -> Any:
        return as_it_is(None)


def _in_use(pipeline: Any) -> CompiledPipeline | None:
    """The handle of a pipeline that is compiled. A shallow copy of such a pipeline has its own, or none."""
    way = getattr(pipeline, "__dict__", {}).get(_PLACE)
    handle = None if way is None else way.handle()
    return handle if handle is not None and handle.pipeline is pipeline else None


def models(pipeline: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """The modules of ``pipeline`` to compile, each once, with the name for the report."""
    return ((name, module) for name, module, reason in _candidates(pipeline) if not reason)


def _candidates(pipeline: Any) -> Iterator[tuple[str, torch.nn.Module, str]]:
    """A pipeline's modules, each once: its name, the module, and why it isn't compiled (empty if it is)."""
    seen: set[int] = set()
    for name in dict.fromkeys([*_MODELS, *vars(pipeline)]):
        for path, module, reason in _parts(name, getattr(pipeline, name, None)):
            if id(module) not in seen:
                seen.add(id(module))
                yield path, module, reason


def _parts(name: str, module: Any) -> Iterator[tuple[str, torch.nn.Module, str]]:
    """The parts of one of its modules to compile: of an autoencoder its halves, as the module's docstring says."""
    if not isinstance(module, torch.nn.Module):
        return
    nets = getattr(module, "nets", None)
    halves = [(half, part) for half in _HALVES if isinstance(part := getattr(module, half, None), torch.nn.Module)]
    if isinstance(module, torch.jit.ScriptModule):
        yield name, module, "it is TorchScript's"
    elif name == _CHECKS:
        yield name, module, "it looks at pictures on the CPU, once"
    elif isinstance(nets, torch.nn.ModuleList):  # several ControlNets
        yield from ((f"{name}.nets.{index}", net, "") for index, net in enumerate(nets))
    elif any(callable(getattr(module, method, None)) for method in _DECODES):
        yield from ((f"{name}.{half}", part, "") for half, part in halves)
        if not halves:
            yield name, module, "what decodes is a method of its own, and neither its forward nor a decoder's"
    elif type(module).forward is torch.nn.Module.forward:
        yield name, module, "it has no forward"
    else:
        yield name, module, ""


def _is_pipeline(value: Any) -> bool:
    classes = type(value).__mro__
    return any(c.__name__ == "DiffusionPipeline" and c.__module__.partition(".")[0] == "diffusers" for c in classes)


def _is_below_offloading(module: torch.nn.Module) -> bool:
    """Whether group offloading was enabled for a module after it was compiled: then its hook would move weights before
    our forward runs, which brings them itself.
    """
    return module.__dict__.get("forward") is not module.__dict__.get(MARK) and offloads(module)


@contextlib.contextmanager
def _beneath_offloading(module: torch.nn.Module) -> Iterator[None]:
    """A context in which accelerate's hook (model offloading) is off, so that a forward can be put on or taken off
    below it.

    The hook keeps the forward that it wraps in ``_old_forward`` and calls it from there. Pipelines replace the hook at
    the end of each call, and a forward above it would be lost then.
    """
    own = module.__dict__
    hooked, wrapped = own.get("forward"), own.get("_old_forward")
    if "_hf_hook" not in own or wrapped is None or hooked is None:
        yield
        return
    if getattr(wrapped, "__func__", None) is type(module).forward:
        del own["forward"]
    else:
        own["forward"] = wrapped
    try:
        yield
    finally:
        own["_old_forward"], own["forward"] = module.forward, hooked
