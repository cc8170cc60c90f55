"""Patches as other packs' nodes put them in: with a state or without, that draw, read values, or go several ways."""

from __future__ import annotations

from typing import Any

import torch

from random_workflows.models import noise


class ImagePrompt:
    """As IP-Adapter's nodes replace cross-attention: one object for all layers, with weights and a span of steps."""

    def __init__(self, seed: int, weight: float, start: float, end: float, asks: bool) -> None:
        self.seed, self.weight, self.start, self.end, self.asks = seed, weight, start, end, asks
        self.layers: dict[Any, torch.Tensor] = {}

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        from comfy.ldm.modules.attention import optimized_attention

        out = optimized_attention(q, k, v, options["n_heads"])
        sigma = options["sigmas"].detach().cpu()[0].item() if self.asks else options["sigmas"][0]
        if self.asks and not self.end <= sigma <= self.start:
            return out
        key = (options["block"], options["block_index"], k.shape[-1])
        if key not in self.layers:
            self.layers[key] = noise(1, 4, k.shape[-1])(self.seed + len(self.layers)).to(k)
        mine = self.layers[key].repeat(q.shape[0], 1, 1)
        mine[
            [
                i
                for i in range(q.shape[0])
                if options["cond_or_uncond"][i * len(options["cond_or_uncond"]) // q.shape[0]]
            ]
        ] *= 0.1
        return out + optimized_attention(q, mine, mine, options["n_heads"]) * self.weight


def image_prompt(model: Any, seed: int, weight: float, start: float, end: float, asks: bool) -> Any:
    """An IP-Adapter on all cross-attentions."""
    model = model.clone()
    sampling = model.get_model_object("model_sampling")
    patch = ImagePrompt(seed, weight, sampling.percent_to_sigma(start), sampling.percent_to_sigma(end), asks)
    for place in (
        ("input", 1),
        ("input", 3),
        ("input", 4),
        ("middle", 0),
        ("output", 0),
        ("output", 1),
        ("output", 2),
        ("output", 3),
    ):
        model.set_model_attn2_replace(patch, *place)
    return model


def couple(model: Any, seed: int, share: float) -> Any:
    """As attention-couple nodes do: the batch of a layer's queries grows between two patches, and shrinks again."""
    model = model.clone()
    other = noise(1, 77, 1)(seed)

    def before(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
        more = [torch.cat([each, each * (1 + 0.1 * other[:, : each.shape[1]].to(each))]) for each in (k, v)]
        return torch.cat([q, q]), *more

    def after(out: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        first, second = out.chunk(2)
        return first * (1 - share) + second * share

    model.set_model_attn2_patch(before)
    model.set_model_attn2_output_patch(after)
    return model


def skip_scaled(model: Any, factor: float, by_step: bool) -> Any:
    """As FreeU's and DeepShrink's relatives do: patches of blocks' outputs, of which one counts its calls."""
    model = model.clone()
    calls = [0]

    def patch(h: torch.Tensor, skipped: torch.Tensor, options: dict[str, Any]) -> Any:
        calls[0] += 1
        return h * (factor + 0.001 * (calls[0] % 7) if by_step else factor), skipped

    model.set_model_output_block_patch(patch)
    return model


def around_blocks(model: Any, factor: float, every: int) -> Any:
    """As block caches do: a block is left out at every few calls, and its result changed at the others."""
    model = model.clone()
    calls = [0]

    def around(args: dict[str, Any], extra: dict[str, Any]) -> Any:
        calls[0] += 1
        if every and calls[0] % every == 0:
            return args
        out = extra["original_block"](args)
        return {**out, "img": out["img"] * factor}

    model.set_model_patch_replace(around, "dit", "double_block", 0)
    return model


def overridden(model: Any, factor: float) -> Any:
    """As SageAttention's nodes do: attention's own function is another one."""
    model = model.clone()
    options = model.model_options["transformer_options"] = model.model_options["transformer_options"].copy()
    options["optimized_attention_override"] = lambda attention, *args, **kwargs: attention(*args, **kwargs) * factor
    return model


def wrapped(model: Any, factor: float) -> Any:
    """As samplers' helpers do: a function around each call of the model."""
    model = model.clone()
    inner = model.model_options.get("model_function_wrapper")

    def wrapper(apply: Any, call: dict[str, Any]) -> Any:
        return (inner(apply, call) if inner else apply(call["input"], call["timestep"], **call["c"])) * factor

    model.set_model_unet_function_wrapper(wrapper)
    return model


def kept(model: Any, share: float, place: str) -> Any:
    """As temporal smoothing does: what was there in the call before is mixed in."""
    model = model.clone()
    before: dict[Any, torch.Tensor] = {}

    def patch(out: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        key = (options.get("block"), options.get("block_index"), out.shape)
        mixed = out * (1 - share) + before.get(key, out) * share
        before[key] = out.clone()
        return mixed

    model.set_model_patch(patch, f"{place}_patch")
    return model


def noisy(model: Any, strength: float, own: bool) -> Any:
    """Noise on self-attention's result, from PyTorch's generator or from one of its own."""
    model = model.clone()
    generator = torch.Generator().manual_seed(5) if own else None

    def patch(out: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        return out + torch.randn(out.shape, generator=generator).to(out) * strength

    model.set_model_patch(patch, "attn1_output_patch")
    return model


def by_sigma(model: Any, share: float, place: str) -> Any:
    """As Deep Shrink does: something else while there is much noise; the shape of a block's result changes, too."""
    model = model.clone()
    limit = model.get_model_object("model_sampling").percent_to_sigma(share)

    def patch(h: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        if options["sigmas"][0].item() > limit and options["block"][1] == 2:
            return torch.nn.functional.avg_pool2d(h, 3, 1, 1) if h.shape[-1] > 4 else h * 0.9
        return h

    def of_output(h: torch.Tensor, skipped: torch.Tensor, options: dict[str, Any]) -> Any:
        return patch(h, options), skipped

    if place == "input":
        model.set_model_input_block_patch(patch)
    else:
        model.set_model_output_block_patch(of_output)
    return model


def residual_again(model: Any, every: int, block: int) -> Any:
    """As FORA's relatives do: what a block adds is computed at every few calls, and added again in those between."""
    model = model.clone()
    state: dict[str, Any] = {"calls": 0, "added": None}

    def around(args: dict[str, Any], extra: dict[str, Any]) -> Any:
        state["calls"] += 1
        added = state["added"]
        if state["calls"] % every and added is not None and added.shape == args["img"].shape:
            return {**args, "img": args["img"] + added}
        out = extra["original_block"](args)
        state["added"] = out["img"] - args["img"]
        return out

    model.set_model_patch_replace(around, "dit", "double_block", block)
    return model


def hardly_changed(model: Any, threshold: float) -> Any:
    """As First Block Cache does: a block runs where its input has changed by more than a share of itself."""
    model = model.clone()
    state: dict[str, Any] = {"given": None, "out": None}

    def around(args: dict[str, Any], extra: dict[str, Any]) -> Any:
        given = state["given"]
        if given is not None and given.shape == args["img"].shape:
            moved = (args["img"] - given).abs().mean() / given.abs().mean()
            if moved.item() < threshold:
                return state["out"]
        state["given"] = args["img"].clone()
        out = extra["original_block"](args)
        state["out"] = {
            name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in out.items()
        }
        return out

    model.set_model_patch_replace(around, "dit", "double_block", 0)
    return model
