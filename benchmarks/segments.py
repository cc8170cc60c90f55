"""``python -m benchmarks.segments [--models SD1.5,SDXL] [--rounds 30] [--out FOLDER]``: other nodes' functions inside a
UNet of ComfyUI.

For each model and patch one call of the UNet with guidance (batch 2): eager, plain eager, plain compiled, and compiled
with the patch: recorded with the model's code, or between captured segments where it runs live. ``COMFYUI_PATH`` names
ComfyUI. Writes ``segments.csv``, ``.md``.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .command import parser_of
from .distance import distance
from .machine import facts, write
from .tables import markdown

_SIDES = {"SD1.5": 512, "SDXL": 1024, "tiny": 64}
_SETTLING = 3  #: calls
Patch = Callable[[Any], Any]


@dataclass
class Row:
    """One patch of one model. ``share``: of the plain model's speed-up, in time saved."""

    model: str
    patch: str
    eager_ms: float
    ours_ms: float
    plain_eager_ms: float
    plain_ours_ms: float
    speedup: float
    share: float
    segments: int
    live: int
    first_s: float
    distance: float


def _free_u(model: Any) -> Any:
    from comfy_extras.nodes_freelunch import FreeU_V2

    return FreeU_V2.execute(model, 1.3, 1.4, 0.9, 0.2).result[0]


def _replaced(model: Any, name: str, function: Any, blocks: list[tuple[str, int]]) -> Any:
    model = model.clone()
    for block, number in blocks:
        model.set_model_patch_replace(function, name, block, number)
    return model


def _perturbed_attention(model: Any) -> Any:
    """What PerturbedAttentionGuidance's additional call has."""
    return _replaced(model, "attn1", lambda q, k, v, options, mask=None: v, [("middle", 0)])


def _skipped_layers(model: Any) -> Any:
    """As guidance by skipped layers has it: some blocks' attention gives nothing."""
    return _replaced(
        model,
        "attn1",
        lambda q, k, v, options, mask=None: torch.zeros_like(q),
        [("input", 7), ("input", 8), ("middle", 0)],
    )


def _image_prompt(model: Any) -> Any:
    """As an IP-Adapter has it: attention to a second prompt, added to that of the first, in every cross-attention."""
    from comfy.ldm.modules.attention import optimized_attention

    generator, there = torch.Generator().manual_seed(5), {"device": model.load_device, "dtype": model.model.get_dtype()}
    image = torch.randn(2, 16, 1024, generator=generator).to(**there)
    widths = {
        layer.to_q.out_features for name, layer in model.model.diffusion_model.named_modules() if name.endswith("attn2")
    }
    weights = {
        width: [(torch.randn(width, 1024, generator=generator) / 32).to(**there) for _ in range(2)]
        for width in sorted(widths)
    }

    def attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any], mask: Any = None
    ) -> torch.Tensor:
        to_k, to_v = weights[k.shape[-1]]
        out = optimized_attention(q, k, v, options["n_heads"])
        # as an IP-Adapter asks whether it is within its range of steps
        sigma = options["sigmas"].detach().cpu()[0].item()
        if sigma <= 1000.0 and sigma >= 0.0:
            out = out + 0.5 * optimized_attention(q, image @ to_k.T, image @ to_v.T, options["n_heads"])
        return out

    blocks = [
        (kind, number) for kind, count in (("input", 12), ("middle", 1), ("output", 12)) for number in range(count)
    ]
    return _replaced(model, "attn2", attention, blocks)


PATCHES: dict[str, Patch] = {
    "FreeU_V2": _free_u,
    "perturbed attention": _perturbed_attention,
    "skipped layers": _skipped_layers,
    "image prompt": _image_prompt,
}


class _Unet:
    """A loaded model, whose UNet is called as a sampler calls it."""

    def __init__(self, name: str, device: torch.device) -> None:
        import comfy.model_management
        import comfy.sd

        from .comfy_models import checkpoint

        self.name, self.device = name, device
        self.model = comfy.sd.load_state_dict_guess_config(
            checkpoint(name, device), output_vae=False, output_clip=False
        )[0]
        comfy.model_management.load_models_gpu([self.model], force_full_load=True)

    def call(self, patcher: Any, seed: int) -> torch.Tensor:
        """One step's call, with guidance."""
        from .comfy_models import conditioning

        generator = torch.Generator().manual_seed(seed)
        side = _SIDES[self.name] // 8
        base, dtype = self.model.model, self.model.model.get_dtype()
        ((context, extra),) = conditioning(self.name, 1)
        latent = torch.randn(2, 4, side, side, generator=generator).to(self.device, torch.float32)
        options = {
            **patcher.model_options.get("transformer_options", {}),
            "wrappers": patcher.wrappers,
            "callbacks": patcher.callbacks,
            "cond_or_uncond": [0, 1],
            "sigmas": torch.full((2,), 5.0, device=self.device),
        }
        more = {"y": extra["pooled_output"].new_ones(2, 2816).to(self.device, dtype)} if self.name == "SDXL" else {}
        result: torch.Tensor = base.apply_model(
            latent,
            torch.full((2,), 5.0, device=self.device),
            c_crossattn=context.expand(2, -1, -1).to(self.device, dtype),
            transformer_options=options,
            **more,
        )
        return result


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _milliseconds(unet: _Unet, patchers: list[Any], rounds: int) -> list[float]:
    """The median of a call of each, in three turns.

    What a turn's first calls take is left out: a model that ran without us lies plain.
    """
    times: list[list[float]] = [[] for _ in patchers]
    for turn in range(3):
        for patcher, own in zip(patchers, times, strict=True):
            for number in range(_SETTLING + -(-rounds // 3)):
                _synchronise(unet.device)
                start = time.perf_counter()
                unet.call(patcher, turn * rounds + number)
                _synchronise(unet.device)
                if number >= _SETTLING:
                    own.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(own) for own in times]


def measure(name: str, device: torch.device, rounds: int) -> list[Row]:
    """Every patch of one model."""
    from sfast_core.hosts.comfy import apply, report

    unet = _Unet(name, device)
    plain = unet.model
    fast = apply(plain)
    rows = []
    for patch, make in PATCHES.items():
        patched, both = make(plain), make(fast)
        _synchronise(device)
        start = time.perf_counter()
        unet.call(both, 0)
        _synchronise(device)
        first = time.perf_counter() - start
        for patcher in (plain, patched, fast, both, fast, both, fast, both):  # loads libraries, traces, captures
            unet.call(patcher, 0)
        eager, ours, plain_eager, plain_ours = _milliseconds(unet, [patched, both, plain, fast], rounds)
        expected, got = unet.call(patched, 1).float(), unet.call(both, 1).float()
        signature = max(
            (each for module in report().modules for each in module.signatures if each.live or each.recorded_in),
            key=lambda each: each.calls,
            default=None,
        )
        rows.append(
            Row(
                name,
                patch,
                eager,
                ours,
                plain_eager,
                plain_ours,
                eager / ours,
                (eager / ours) / (plain_eager / plain_ours),
                signature.segments if signature else 0,
                len(signature.live) if signature else 0,
                first,
                distance(got, expected),
            )
        )
        print(rows[-1], file=sys.stderr, flush=True)
        if signature is not None and signature.live_because:
            print(f"  live because {'; '.join(signature.live_because)}", file=sys.stderr)
        for module in report().modules:
            for reason, count in module.reasons.items():
                print(f"  eager, {count}x: {reason}", file=sys.stderr)
        fast = apply(plain.clone())
        from sfast_core.hosts.comfy.install import states

        for state in states():
            state.engine.reset()
    return rows


def table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    head = ["UNet, batch 2", "patch", "eager ms", "ours ms", "x eager", "x eager without it", "share", "segments"]
    head += ["live calls", "first call", "distance"]
    found = []
    for row in rows:
        times = (row.eager_ms, row.ours_ms, row.speedup, row.plain_eager_ms / row.plain_ours_ms)
        cells = [row.model, row.patch, *(f"{each:.2f}" for each in times), f"{row.share:.0%}", row.segments, row.live]
        found.append([*cells, f"{row.first_s:.1f} s", f"{row.distance:.1e}"])
    return markdown(head, found)


def main() -> None:
    """Measure and write."""
    parser = parser_of("segments", __doc__, "docs/measured")
    parser.add_argument("--models", default="SD1.5,SDXL", help="of SD1.5, SDXL and tiny, with commas between them")
    parser.add_argument("--rounds", type=int, default=30, help="calls of each variant")
    given = parser.parse_args()
    sys.argv = sys.argv[:1]
    sys.path.insert(0, os.environ["COMFYUI_PATH"])
    import comfy.options  # noqa: F401  (it leaves this program's arguments alone)
    from comfy.cli_args import args

    args.cpu = not torch.cuda.is_available()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.inference_mode():
        rows = [row for name in given.models.split(",") for row in measure(name, device, given.rounds)]
    print(write(given.out, "segments", rows, table(rows), facts()))


if __name__ == "__main__":
    main()
