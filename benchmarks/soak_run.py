"""``python -m benchmarks.soak_run MODEL CHANGES SEED STEPS LIMIT_S``: the changes in a real ComfyUI, in one process.

Prints JSON.

An object with ``outcomes`` (one per change), ``memory`` (bytes in use by name of the moment), ``reasons`` (why calls
ran eager, how often) and ``device``. :mod:`benchmarks.soak` starts it.
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
import os
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import torch

from .comfy_models import checkpoint, conditioning, control_net, lora
from .comfy_variant import fast_compile
from .distance import distance
from .soak_patches import patched
from .soak_plan import LORAS, SIZES, Change, State, plan

_SEED = 1  #: of every picture, so that a state that comes back must give the bits from before
_WARM_UP = 0.1  #: of the changes


@dataclass
class Outcome:
    """One change, sampled by a plain ComfyUI model and by ours.

    Seconds; ``again``: the same once more, where the weights were swapped.
    """

    kind: str
    swap: bool
    eager_s: float
    ours_s: float
    eager_again_s: float = 0.0
    ours_again_s: float = 0.0
    distance: float = 0.0  #: of our latent to eager's, relative L2
    traces: int = 0
    captures: int = 0
    eager_calls: int = 0  #: of our model
    revisited: bool = False  #: the state was there before
    other_bits: bool = False  #: and our latent has other bits than then, or than the second time
    first_bits: bool = False  #: likewise, but then it was recorded with live code that may run once only
    eager_other_bits: bool = False
    failure: str = ""


class Counts:
    """What our report has counted so far, signatures included that are forgotten by now."""

    def __init__(self) -> None:
        self._signatures: dict[int, Any] = {}

    def read(self) -> tuple[int, int, int]:
        """Traces, captures and eager calls."""
        from sfast_core.hosts.comfy import report

        modules = report().modules
        for module in modules:
            self._signatures |= {id(signature): signature for signature in module.signatures}
        captures = sum(signature.captures for signature in self._signatures.values())
        return (
            sum(module.calls["traced"] for module in modules),
            captures,
            sum(module.calls["eager"] for module in modules),
        )

    def recorded_live(self) -> bool:
        """Whether a signature that has come since the last :meth:`read` has live code of other nodes in it."""
        known = set(self._signatures)
        self.read()
        return any(signature.live for each, signature in self._signatures.items() if each not in known)


class Side:
    """One of the two models: a plain one, or one with our node."""

    def __init__(self, name: str, device: torch.device, ours: bool) -> None:
        import comfy.sd

        self.name = name
        self._ours = ours
        self.model = comfy.sd.load_state_dict_guess_config(
            checkpoint(name, device), output_vae=False, output_clip=False
        )[0]
        self._bits: dict[State, str] = {}
        self._recorded: set[State] = set()  # those whose bits are a recording's
        self._with_loras: tuple[Any, Any] = (None, None)

    def patcher(self, state: State, loras: list[dict[str, torch.Tensor]]) -> Any:
        """The model as the nodes of a workflow make it.

        ComfyUI keeps a node's output while its inputs stay: so do LoRAs here.
        """
        first = self._ours and not state.node_last
        key = (state.loras, first)
        if self._with_loras[0] != key:
            import comfy.sd

            model = fast_compile(self.model) if first else self.model.clone()
            for number, strength in state.loras:
                model = comfy.sd.load_lora_for_models(model, None, dict(loras[number]), strength, 0.0)[0]
            self._with_loras = (key, model)
        model = patched(self._with_loras[1], state.patches)
        return fast_compile(model) if self._ours and state.node_last else model

    def other_bits(self, state: State, latent: torch.Tensor, recorded: bool = False) -> tuple[bool, bool, bool]:
        """Whether the state was there before, whether it gave another latent then, and whether that or this one is a
        recording's: its live code has seen what the model itself computes.

        ``recorded``: this one is.
        """
        digest = hashlib.sha256(latent.contiguous().numpy().tobytes()).hexdigest()
        before = self._bits.get(state)
        either = recorded or state in self._recorded
        self._bits[state] = digest
        (self._recorded.add if recorded else self._recorded.discard)(state)
        return before is not None, before not in (None, digest), either


class Sampler:
    """Samples a state, always from the same noise."""

    def __init__(self, name: str, device: torch.device, steps: int) -> None:
        self._name = name
        self._device = device
        self._steps = steps
        self._net = control_net(name, device) if name != "SDXL" else None  # its state dict is another one

    def __call__(self, patcher: Any, state: State) -> tuple[torch.Tensor, float]:
        """The latent, and the seconds that it took."""
        import comfy.sample

        width, height = state.size
        latent = torch.zeros([state.batch, 4, height // 8, width // 8])
        prompts = [
            conditioning(self._name, 2 * state.prompt + which, state.tokens, **self._control(state)) for which in (0, 1)
        ]
        noise = comfy.sample.prepare_noise(latent, _SEED)
        start = _now(self._device)
        result = comfy.sample.sample(
            patcher,
            noise,
            self._steps,
            state.cfg,
            state.sampler,
            "normal",
            *prompts,
            latent,
            denoise=1.0,
            disable_pbar=True,
            seed=_SEED,
        )
        return result.float().cpu(), _now(self._device) - start

    def _control(self, state: State) -> dict[str, Any]:
        if not state.control or self._net is None:
            return {}
        hint = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(3))
        return {
            "control": self._net.copy().set_cond_hint(hint, state.control, (0.0, 1.0)),
            "control_apply_to_uncond": False,
        }


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _used_bytes(device: torch.device) -> int:
    """What the GPU has given away, to graphs too; on a CPU tensors that are alive: its allocator gives nothing back."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return total - free
    storages = [
        thing.untyped_storage()
        for thing in gc.get_objects()
        if issubclass(type(thing), torch.Tensor) and not thing.is_meta
    ]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _one(
    change: Change, eager: Side, ours: Side, loras: list[dict[str, torch.Tensor]], sample: Sampler, counts: Counts
) -> Outcome:
    state, before = change.state, counts.read()
    plain = eager.patcher(state, loras)
    expected, eager_s = sample(plain, state)
    outcome = Outcome(change.kind, change.swap, eager_s, 0.0)
    outcome.revisited, outcome.eager_other_bits, _ = eager.other_bits(state, expected)
    try:
        fast = ours.patcher(state, loras)
        got, outcome.ours_s = sample(fast, state)
        outcome.distance = distance(got, expected)
        _, other, either = ours.other_bits(state, got, counts.recorded_live())
        if change.swap:
            eagers, outcome.eager_again_s = sample(plain, state)
            outcome.eager_other_bits |= not torch.equal(eagers, expected)
            again, outcome.ours_again_s = sample(fast, state)
            recorded = counts.recorded_live()
            other, either = other or not torch.equal(again, got), either or recorded
            ours.other_bits(state, again, recorded)
        outcome.other_bits, outcome.first_bits = other and not either, other and either
    except Exception as error:  # noqa: BLE001 (a plain model did it: ours has failed)
        outcome.failure = f"{type(error).__name__}: {error}"[:300]
        outcome.distance = math.inf
    traces, captures, eager_calls = counts.read()
    outcome.traces, outcome.captures, outcome.eager_calls = (
        traces - before[0],
        captures - before[1],
        eager_calls - before[2],
    )
    return outcome


def _walk(
    changes: list[Change], name: str, device: torch.device, steps: int, limit_s: float
) -> tuple[list[Outcome], dict[str, int], dict[str, int]]:
    """The outcomes until all changes are done or the time is up, the memory on the way, and our report's reasons."""
    from sfast_core.hosts.comfy import report

    start = time.perf_counter()
    eager, ours = (Side(name, device, mine) for mine in (False, True))
    loras = [lora(name, 100 + number, device) for number in range(LORAS)]
    sample, counts = Sampler(name, device, steps), Counts()
    first = State(SIZES[name][0])
    for side in (eager, ours):
        for _ in range(2):
            side.other_bits(first, sample(side.patcher(first, loras), first)[0])
    memory = {"loaded": _used_bytes(device)}
    outcomes: list[Outcome] = []
    for number, change in enumerate(changes, 1):
        outcomes.append(_one(change, eager, ours, loras, sample, counts))
        if number == max(1, int(_WARM_UP * len(changes))):
            memory["warmed_up"] = _used_bytes(device)
        wrong = _wrong(outcomes[-1])
        if wrong or number % 25 == 0:
            where = f": {wrong}; {change}" if wrong else ""
            print(
                f"{number} of {len(changes)}, {time.perf_counter() - start:.0f} s{where}", file=sys.stderr, flush=True
            )
        if time.perf_counter() - start > limit_s:
            break
    memory["at_the_end"] = _used_bytes(device)
    reasons: Counter[str] = sum((module.reasons for module in report().modules), Counter())
    return outcomes, memory, dict(reasons)


def _wrong(outcome: Outcome) -> str:
    """What to look into, in words; empty where there is nothing."""
    found = (
        (outcome.failure, outcome.failure),
        (outcome.other_bits, "other bits"),
        (outcome.first_bits, "other bits than when it was recorded"),
        (outcome.eager_other_bits, "other bits of ComfyUI's own"),
        (outcome.eager_calls, "ran as without the node"),
    )
    return ", ".join(words for there, words in found if there)


def run(name: str, count: int, seed: int, steps: int, limit_s: float) -> dict[str, Any]:
    """Walk, then unload everything."""
    import comfy.model_management as management

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    before = _used_bytes(device)
    outcomes, memory, reasons = _walk(plan(name, count, seed), name, device, steps, limit_s)
    management.unload_all_models()
    gc.collect()
    management.soft_empty_cache()
    memory = {"before": before, **memory, "unloaded": _used_bytes(device)}
    return {
        "outcomes": [asdict(outcome) for outcome in outcomes],
        "memory": memory,
        "reasons": reasons,
        "device": device.type,
    }


if __name__ == "__main__":
    sys.path.insert(0, os.environ["COMFYUI_PATH"])
    import comfy.options  # noqa: F401  (it leaves this program's arguments alone)
    from comfy.cli_args import args as comfy_args

    comfy_args.cpu = not torch.cuda.is_available()  # before anything imports comfy.model_management
    with torch.inference_mode():
        print(json.dumps(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))))
