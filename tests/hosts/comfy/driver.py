"""ComfyUI as a library, on the CPU, with this pack loaded as ComfyUI loads it. For scenarios: import this first.

Each scenario file runs in a process of its own (``run_scenarios.py``), in the Python that ComfyUI runs in.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
os.environ["FAST_COMPILE_CPU"] = "1"
_CACHE = tempfile.TemporaryDirectory(prefix="fast_compile_choices_")  # gone with this process
os.environ["XDG_CACHE_HOME"] = _CACHE.name  # what the user's own models were measured to need stays out of scenarios
sys.path[:] = [
    os.environ["COMFYUI_PATH"],
    *(entry for entry in sys.path if Path(entry or ".").resolve() not in (ROOT, HERE)),
    str(HERE),
]

import comfy.options  # noqa: E402, F401  arguments stay unparsed
from comfy.cli_args import args as comfy_args  # noqa: E402

comfy_args.cpu = True  # before anything imports comfy.model_management

import comfy.model_management  # noqa: E402
import comfy.sample  # noqa: E402
import comfy.sd  # noqa: E402
import tiny  # noqa: E402
import torch  # noqa: E402


def load_pack(name: str = "fast-compile_x_test") -> ModuleType:
    """The pack under a name such as ComfyUI gives it: a folder's, which may hold a hyphen."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


PACK = load_pack()
fast_compile = importlib.import_module(".sfast_core.hosts.comfy", PACK.__name__)
CompileConfig = importlib.import_module(".sfast_core", PACK.__name__).CompileConfig


def load(
    family: str,
    dtype: torch.dtype = torch.float16,
    options: dict[str, Any] | None = None,
    quantised: dict[str, Any] | None = None,
) -> Any:
    """A fresh model patcher of this family.

    ``options``: as the node Load Diffusion Model sets them; ``quantised``: see ``tiny.quantised``.
    """
    weights = tiny.state_dict(family, dtype)
    return of_weights(family, tiny.quantised(weights, **quantised) if quantised else weights, options)


def of_weights(family: str, weights: dict[str, torch.Tensor], options: dict[str, Any] | None = None) -> Any:
    """A model patcher of a checkpoint of this family."""
    if options:
        model = comfy.sd.load_diffusion_model_state_dict(weights, model_options=options)
    else:
        model = comfy.sd.load_state_dict_guess_config(weights, output_vae=False, output_clip=False)[0]
    found = type(model.model.model_config).__name__
    assert found == tiny.FAMILIES[family][0], f"ComfyUI took the {family} checkpoint for {found}"
    return model


def prompt(model: Any, seed: int, tokens: int = 77, **more: Any) -> list[Any]:
    """Random conditioning of the model's width."""
    _, width, pooled = next(
        entry for entry in tiny.FAMILIES.values() if entry[0] == type(model.model.model_config).__name__
    )
    extra = {"pooled_output": tiny.noise((1, pooled), seed + 100)} if pooled else {}
    return [[tiny.noise((1, tokens, width), seed), {**extra, **more}]]


def sample(
    model: Any, size: tuple[int, int] = (64, 64), steps: int = 2, cfg: float = 7.0, batch: int = 1, **options: Any
) -> torch.Tensor:
    """Sample a latent. ``options``: sampler, tokens (positive, negative), seed, positive and negative (given
    conditioning), latent, mask.
    """
    tokens = options.get("tokens", (77, 77))
    positive = options.get("positive") or prompt(model, 1, tokens[0])
    negative = options.get("negative") or prompt(model, 2, tokens[1])
    latent = options.get(
        "latent", torch.zeros([batch, model.model.latent_format.latent_channels, size[0] // 8, size[1] // 8])
    )
    seed = options.get("seed", 1)
    noise = comfy.sample.prepare_noise(latent, seed)
    return comfy.sample.sample(
        model, noise, steps, cfg, options.get("sampler", "euler"), options.get("scheduler", "normal"), positive, negative, latent,
        denoise=1.0, disable_pbar=True, seed=seed, noise_mask=options.get("mask"),
    )  # fmt: skip


class Forwards:
    """Records what each call of the model gave, as a function wrapper on a clone of ``model``."""

    def __init__(self, model: Any) -> None:
        self.results: list[torch.Tensor] = []
        self.model = model.clone()
        inner = model.model_options.get("model_function_wrapper")
        self.model.set_model_unet_function_wrapper(lambda apply, call: self._run(apply, call, inner))

    def _run(self, apply: Any, call: dict[str, Any], inner: Any) -> torch.Tensor:
        result = inner(apply, call) if inner else apply(call["input"], call["timestep"], **call["c"])
        self.results.append(result.clone())
        return result


def distance(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """Relative L2 distance."""
    assert mine.shape == theirs.shape, f"{tuple(mine.shape)} beside {tuple(theirs.shape)}"
    return ((mine.double() - theirs.double()).norm() / theirs.double().norm()).item()


def assert_close(mine: torch.Tensor, theirs: torch.Tensor, limit: float = 1e-4) -> None:
    """Equal up to the rounding of float32."""
    assert torch.isfinite(theirs).all() and theirs.norm() > 0, "the reference is no use"
    apart = distance(mine, theirs)
    assert apart <= limit, f"{apart:.2e} apart, at most {limit:.0e}"


def assert_differs(mine: torch.Tensor, theirs: torch.Tensor, least: float = 1e-3) -> None:
    """Clearly another picture: what was changed took effect."""
    apart = distance(mine, theirs)
    assert apart >= least, f"only {apart:.2e} apart: the change had no effect"


def report_of(model: Any) -> Any:
    """The report of this patcher's model."""
    (found,) = [state for state in fast_compile.states() if state.base_model() is model.model]
    return found.engine.report


def calls(model: Any) -> Counter[str]:
    """This model's calls by path so far, and the reasons of those that ran eager."""
    report = report_of(model)
    return Counter(report.calls) + Counter({f"because {reason}": count for reason, count in report.reasons.items()})


def assert_fused(model: Any, before: Counter[str] | None = None) -> None:
    """All its calls since ``before`` ran traced or fused, and some fused."""
    since = calls(model) - (before or Counter())
    assert since["fused"] and not since["eager"], dict(since)


def assert_eager(model: Any, word: str, before: Counter[str] | None = None) -> None:
    """All its calls since ``before`` ran eager, for a reason that holds ``word``."""
    since = calls(model) - (before or Counter())
    reasons = [reason for reason in since if reason.startswith("because")]
    assert since["eager"] and not since["fused"] and not since["traced"], dict(since)
    assert reasons and all(word in reason for reason in reasons), reasons


def layouts(model: Any) -> dict[str, tuple[Any, ...]]:
    """How each weight lies in memory: its strides, and whether its storage is its own."""
    weights = model.model.diffusion_model.state_dict()
    return {
        name: (tensor.stride(), tensor.untyped_storage().nbytes() == tensor.nbytes) for name, tensor in weights.items()
    }


def has(module: str) -> bool:
    """Whether this version has that module of ComfyUI's; it isn't imported, the packages that it lies in are."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor the package
        return False


def node(module: str, name: str, whole: bool = False) -> Any:
    """A node of ComfyUI's own, as a function of its inputs: some versions have it in the old style, some in the new.

    Args:
        module: of ``comfy_extras``.
        name: the node's.
        whole: the function returns all outputs. Else the first.
    """
    kind = getattr(importlib.import_module(f"comfy_extras.{module}"), name)

    def run(*inputs: Any, **named: Any) -> Any:
        call = kind.execute if hasattr(kind, "execute") else getattr(kind(), kind.FUNCTION)
        output = call(*inputs, **named)
        found = output if isinstance(output, tuple) else output.result
        return found if whole else found[0]

    return run
