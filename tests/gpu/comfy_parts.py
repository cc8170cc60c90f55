"""Runs a VAE, two text encoders and a ControlNet plain and compiled in a real ComfyUI that manages memory in one of its
ways, and prints as JSON what came of each.

In ComfyUI's Python, with ``COMFYUI_PATH``; ``test_comfy_parts_gpu.py`` starts it, once for each way. Weights are
random: the text encoders are the whole of SD1.5's CLIP and of T5 base, the smallest T5 that ComfyUI loads; VAE, UNet
    and ControlNet have SD1.5's widths and few blocks.
Without a GPU everything is on the CPU, where ``FAST_COMPILE_CPU=1`` has it fused: so this file itself can be tried in
the mode ``normal``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

RUNS = 4  #: of each case: one is traced, one captured
STEPS = 3
_KL = {
    "double_z": True,
    "z_channels": 4,
    "resolution": 256,
    "in_channels": 3,
    "out_ch": 3,
    "ch": 128,
    "ch_mult": [1, 1, 2, 2],
}
_KL |= {"num_res_blocks": 1, "attn_resolutions": [], "dropout": 0.0}
_SIZES = ((256, 256), (264, 200))  #: of pictures; the second gives a latent of 33x25
_LORA_LAYERS = ("self_attn.q_proj", "mlp.fc1")


class Case(NamedTuple):
    """One call, by the plain object and by the compiled one. Cases of the same name must give the same bits."""

    name: str
    plain: Callable[[], Any]
    fast: Callable[[], Any]


class Part(NamedTuple):
    """What is compared: the compiled objects, and the cases in the order in which they run."""

    compiled: tuple[Any, ...]
    cases: list[Case]


def twice(name: str, call: Callable[[Any], Any], plain: Any, fast: Any) -> Case:
    """The case of the same call with either object."""
    return Case(name, lambda: call(plain), lambda: call(fast))


# -- the parts -----------------------------------------------------------------------------------------------------


def vae(tools: Any) -> Part:
    """Pictures of two sizes there and back, and in tiles that come in as few shapes as tiles can."""
    import comfy.ldm.models.autoencoder
    import comfy.sd
    import torch

    params = {"ddconfig": _KL, "embed_dim": 4}
    with torch.device("meta"):
        shapes = tools.models.shapes_of(lambda: comfy.ldm.models.autoencoder.AutoencoderKL(**params))
    weights = tools.random_weights(shapes, tools.device, 0)
    plain, inner = (comfy.sd.VAE(sd=dict(weights), config={"params": params}) for _ in range(2))
    fast = tools.hooks.apply_vae(inner)
    cases = []
    for width, height in _SIZES:
        latent, picture = (
            tools.noise(1, 4, height // 8, width // 8),
            tools.noise(1, height, width, 3).mul(0.2).add(0.5).clamp(0, 1),
        )
        # Around the middle grey: its share of the norm would hide a difference.
        cases.append(twice(f"decode {width}x{height}", lambda one, z=latent: one.decode(z) - 0.5, plain, fast))
        cases.append(twice(f"encode {width}x{height}", lambda one, x=picture: one.encode(x), plain, fast))
    wide = tools.noise(1, 4, 32, 56)
    cases.append(
        twice("decode tiled", lambda one: one.decode_tiled(wide, tile_x=32, tile_y=32, overlap=8) - 0.5, plain, fast)
    )
    return Part((fast,), cases)


def clip(tools: Any) -> Part:
    """Prompts, a clip skip, and a LoRA that is put on, changed and removed."""
    import comfy.sd
    import torch

    shapes = {
        key.removeprefix("clip.transformer."): torch.empty(shape, device="meta")
        for key, shape in importlib.import_module("benchmarks.clip_shapes").clip_l("clip")
    }
    shapes["text_projection.weight"] = torch.empty(768, 768, device="meta")
    weights = tools.random_weights(shapes, tools.device, 1)
    plain, inner = (comfy.sd.load_text_encoder_state_dicts([dict(weights)]) for _ in range(2))
    fast = tools.hooks.apply_clip(inner)
    lora = text_lora(tools, shapes)

    def with_lora(one: Any, strength: float) -> Any:
        return comfy.sd.load_lora_for_models(None, one, dict(lora), 0.0, strength)[1]

    def skipping(one: Any) -> Any:
        clone = one.clone()
        clone.clip_layer(-2)
        return clone

    def case(name: str, text: str, change: Callable[[Any], Any] = lambda one: one) -> Case:
        mine, theirs = change(fast), change(plain)
        return Case(name, lambda: encoded(theirs, text), lambda: encoded(mine, text))

    return Part(
        (fast,),
        [
            case("a cat", "a cat"),
            case("weights", "a (dog:1.3) on the beach"),
            case("clip skip", "a cat", skipping),
            case("LoRA", "a cat", lambda one: with_lora(one, 1.0)),
            case("weaker LoRA", "a cat", lambda one: with_lora(one, 0.4)),
            case("a cat", "a cat"),
        ],
    )


def t5(tools: Any) -> Part:
    """Prompts of two lengths, which ComfyUI pads to the same number of tokens and masks."""
    import comfy.ops
    import comfy.sd
    import comfy.text_encoders.t5 as family

    config = json.loads((Path(family.__file__).parent / "t5_config_base.json").read_text())
    shapes = tools.models.shapes_of(lambda: family.T5(config, None, "meta", comfy.ops.disable_weight_init))
    weights = tools.random_weights(shapes, tools.device, 2)
    plain, inner = (comfy.sd.load_text_encoder_state_dicts([dict(weights)]) for _ in range(2))
    fast = tools.hooks.apply_clip(inner)
    texts = ("rain on a roof", "a long and quiet song of two old guitars", "rain on a roof")
    return Part((fast,), [twice(text, lambda one, text=text: encoded(one, text), plain, fast) for text in texts])


def controlnet(tools: Any) -> Part:
    """A picture without the ControlNet, with it at two strengths, and without it again; UNet and ControlNet are
    compiled both.
    """
    import comfy.model_management
    import comfy.sample
    import comfy.sd
    import torch

    models = tools.models
    weights = models.checkpoint("tiny", tools.device)
    plain, inner = (
        comfy.sd.load_state_dict_guess_config(dict(weights), output_vae=False, output_clip=False)[0] for _ in range(2)
    )
    plain_net, inner_net = (models.control_net("tiny", tools.device) for _ in range(2))
    fast, fast_net = tools.hooks.apply(inner), tools.hooks.apply_controlnet(inner_net)
    # ComfyUI computes the noise levels where the model's buffers lie: on the CPU until it is first loaded, then on the
    # GPU, with other last bits.
    comfy.model_management.load_models_gpu([plain, fast])
    latent, hint = torch.zeros([1, 4, 32, 32]), torch.rand(1, 3, 256, 256, generator=torch.Generator().manual_seed(3))
    noise = comfy.sample.prepare_noise(latent, 1)

    def sample(patcher: Any, net: Any, strength: float) -> Any:
        options = (
            {"control": net.copy().set_cond_hint(hint, strength, (0.0, 1.0)), "control_apply_to_uncond": False}
            if strength
            else {}
        )
        prompts = [models.conditioning("tiny", seed, **options) for seed in (1, 2)]
        return comfy.sample.sample(
            patcher, noise, STEPS, 7.0, "euler", "normal", *prompts, latent, disable_pbar=True, seed=1
        )

    def case(name: str, strength: float) -> Case:
        return Case(name, lambda: sample(plain, plain_net, strength), lambda: sample(fast, fast_net, strength))

    return Part(
        (fast, fast_net), [case("without", 0.0), case("with", 1.0), case("half as strong", 0.5), case("without", 0.0)]
    )


PARTS: dict[str, Callable[[Any], Part]] = {"vae": vae, "clip": clip, "t5": t5, "controlnet": controlnet}


def encoded(one: Any, text: str) -> Any:
    """What the node CLIP Text Encode computes: tokens and pooled vector, where there is one, side by side."""
    import torch

    found = one.encode_from_tokens(one.tokenize(text), return_pooled=True)
    return torch.cat([value.flatten() for value in found if value is not None])


def text_lora(tools: Any, shapes: dict[str, Any], rank: int = 4) -> dict[str, Any]:
    """A LoRA on CLIP's layers: at strength 1 it adds a third of a weight's norm."""
    found: dict[str, Any] = {}
    for key, shape in shapes.items():
        layer = key.removesuffix(".weight")
        if key != layer and layer.endswith(_LORA_LAYERS):
            rows, columns = shape.shape
            place = "lora_te_" + layer.replace(".", "_")
            found[f"{place}.lora_up.weight"] = tools.noise(rows, rank) * (0.3 / (rank * columns) ** 0.5)
            found[f"{place}.lora_down.weight"] = tools.noise(rank, columns)
            found[f"{place}.alpha"] = tools.torch.tensor(float(rank))
    return found


# -- comparing -----------------------------------------------------------------------------------------------------


class Tools:
    """What the parts are made with."""

    def __init__(self) -> None:
        import comfy.model_management
        import torch

        self.torch = torch
        self.device = comfy.model_management.get_torch_device()
        self.hooks = importlib.import_module("sfast_core.hosts.comfy")
        self.models = importlib.import_module("benchmarks.comfy_models")
        self.random_weights = importlib.import_module("benchmarks.random_weights").random_weights
        self._generator = torch.Generator().manual_seed(4)

    def noise(self, *shape: int) -> Any:
        """Other normal noise with each call, on the CPU."""
        return self.torch.randn(shape, generator=self._generator)


def facts(part: Part) -> dict[str, Any]:
    """Run the cases and unload: distances and whether bits repeat by the case's name, and what the report says of each
    compiled module.

    ``first_to_last``: how far a case's first result is from its last one, 0 where they are the same.
    ``changes``: how far a case's result is from the first case's, where their shapes are the same.
    """
    import comfy.model_management

    lookup = importlib.import_module("sfast_core.hosts.comfy.lookup")
    results: dict[str, Any] = {}
    found: dict[str, Any] = {"distances": {}, "same_bits": {}, "first_to_last": {}}
    for name, plain, fast in part.cases:
        # dynamic VRAM computes once with weights in float32 that it has just patched, and then with what it has rounded
        plain()
        expected = plain().float().cpu()
        runs = [fast().float().cpu() for _ in range(RUNS)]
        last = results.setdefault(name, runs[-1])
        found["distances"].setdefault(name, []).extend(distance(run, expected) for run in runs)
        found["same_bits"][name] = found["same_bits"].get(name, True) and all(
            bool((run == last).all()) for run in runs[1:]
        )
        found["first_to_last"].setdefault(name, []).append(distance(runs[0], last))
    first, *others = results.items()
    found["changes"] = {name: distance(result, first[1]) for name, result in others if result.shape == first[1].shape}
    reports = [
        module
        for thing in part.compiled
        for module in lookup.report_of(thing, lambda report: report.as_dict()["modules"])
    ]
    found["modules"] = {module["name"]: shortened(module) for module in reports}
    comfy.model_management.unload_all_models()
    found["graph_bytes_unloaded"] = lookup.graph_bytes()
    return found


def distance(mine: Any, theirs: Any) -> float:
    """Relative L2 distance."""
    return float((mine - theirs).norm() / theirs.norm())


def shortened(module: dict[str, Any]) -> dict[str, Any]:
    """A module's report without its rewrites and impls. ``no_graph``: why signatures were not captured."""
    kept = {key: module[key] for key in ("device", "calls", "reasons", "graph_bytes")}
    signatures = module["signatures"]
    no_graph = sorted({reason for signature in signatures if (reason := signature["not_captured_because"])})
    return {**kept, "inputs": [signature["inputs"] for signature in signatures], "no_graph": no_graph}


def main() -> None:
    """In the mode that the command line names, all parts or those that it names behind it."""
    from comfy_memory import prepare
    from comfy_nodes import find_modules

    find_modules(os.environ["COMFYUI_PATH"])
    import comfy.options  # noqa: F401  arguments stay unparsed
    import torch
    from comfy.cli_args import args

    args.cpu = not torch.cuda.is_available()
    mode, *names = sys.argv[1:]
    kept = prepare(mode)
    if kept is None:
        print("\n" + json.dumps({"missing": "dynamic VRAM isn't available here"}), flush=True)
        return
    with torch.inference_mode():
        found = {name: facts(PARTS[name](Tools())) for name in names or PARTS}
    print("\n" + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
