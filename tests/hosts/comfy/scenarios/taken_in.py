"""Other nodes' functions that are recorded with the model's own code: on, changed, off, on again, and at another size,
as without us.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from driver import assert_close, assert_differs, calls, fast_compile, load, node, report_of, sample

_SIZES = ((64, 64), (96, 64))
_LOADED: dict[str, tuple[Any, Any]] = {}


def _recorded_in(patch: Any, family: str = "sd15", changes: bool = True, acts: bool = True, **options: Any) -> int:
    """``patch(model, index)`` puts a node on a model, with one of two settings.

    All its calls are fused, and none of what it puts there runs live.

    Returns how many of them were traced.
    """
    if family not in _LOADED:
        _LOADED[family] = load(family), load(family)
    model, twin = _LOADED[family]
    options = {"steps": 3, **options}
    fast = fast_compile.apply(model)
    sample(fast, size=_SIZES[0], **options)
    before = calls(model)
    mine, theirs = ([made, patch(made, 0), patch(made, 1)] for made in (fast, twin))
    pictures: dict[tuple[int, Any], Any] = {}
    for setting, size in (
        (0, _SIZES[0]),
        (1, _SIZES[0]),
        (2, _SIZES[0]),
        (0, _SIZES[0]),
        (1, _SIZES[0]),
        (1, _SIZES[1]),
    ):
        torch.manual_seed(3)
        got = sample(mine[setting], size=size, **options)
        torch.manual_seed(3)
        pictures[setting, size] = expected = sample(theirs[setting], size=size, **options)
        assert_close(got, expected)
    if acts:
        assert_differs(pictures[1, _SIZES[0]], pictures[0, _SIZES[0]])
    if changes:
        assert_differs(pictures[2, _SIZES[0]], pictures[1, _SIZES[0]])
    found = calls(model) - before
    assert not found["eager"] and found["fused"] > found["traced"], dict(found)
    signatures = [signature for signature in report_of(model).signatures if signature.recorded_in or signature.live]
    assert signatures and not any(signature.live for signature in signatures), [
        signature.live for signature in signatures
    ]
    return found["traced"]


def _free_u(name: str, model: Any, index: int) -> Any:
    """For the channels that the tiny model has: the node takes those of the first level from the model's settings."""
    config = model.model.model_config.unet_config
    own, config["model_channels"] = config["model_channels"], config["model_channels"] // 4
    try:
        return node("nodes_freelunch", name)(model, 1.3 + index, 1.4, 0.9, 0.2)
    finally:
        config["model_channels"] = own


def scenario_free_u() -> None:
    for name in ("FreeU", "FreeU_V2"):
        _recorded_in(functools.partial(_free_u, name))


def scenario_perturbed_attention_guidance() -> None:
    _recorded_in(lambda model, index: node("nodes_pag", "PerturbedAttentionGuidance")(model, 3.0 + index))


def scenario_skip_layer_guidance() -> None:
    _recorded_in(
        lambda model, index: node("nodes_sd3", "SkipLayerGuidanceSD3")(model, "0", 3.0 + index, 0.0, 0.9), "sd3"
    )
    _recorded_in(
        lambda model, index: node("nodes_slg", "SkipLayerGuidanceDiT")(model, 3.0 + index, 0.0, 1.0, "0", "", 0.0),
        "sd3",
    )


class _ImagePrompt:
    """As IPAdapter_plus has it in the place of cross-attentions."""

    def __init__(self, image: torch.Tensor, weight: float, start: float, end: float) -> None:
        self.image, self.kwargs, self.layers = image, [{"weight": weight, "start": start, "end": end}], {}

    def add(self, width: int, made: tuple[torch.nn.Linear, torch.nn.Linear]) -> None:
        self.layers[width] = made

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, extra_options: dict[str, Any]
    ) -> torch.Tensor:
        from comfy.ldm.modules.attention import optimized_attention

        out = optimized_attention(q, k, v, extra_options["n_heads"])
        sigma = extra_options["sigmas"].detach().cpu()[0].item() if "sigmas" in extra_options else 999999999.9
        for given in self.kwargs:
            if sigma <= given["start"] and sigma >= given["end"]:
                out = out + self._attend(q, extra_options, given["weight"])
        return out

    def _attend(self, q: torch.Tensor, extra_options: dict[str, Any], weight: float) -> torch.Tensor:
        from comfy.ldm.modules.attention import optimized_attention

        which = extra_options["cond_or_uncond"]
        to_k, to_v = self.layers[q.shape[-1]]
        k, v = (layer(self.image) for layer in (to_k, to_v))
        k, v = (
            torch.cat([(each, each * 0)[number] for number in which for _ in range(q.shape[0] // len(which))])
            for each in (k, v)
        )
        return optimized_attention(q, k, v, extra_options["n_heads"]) * weight


def _image_prompt(model: Any, index: int, start: float = 1e9, end: float = 0.0) -> Any:
    model, generator = model.clone(), torch.Generator().manual_seed(1)
    widths = sorted(
        {
            layer.to_q.out_features
            for name, layer in model.model.diffusion_model.named_modules()
            if name.endswith("attn2")
        }
    )
    image = torch.randn(1, 4, 16, generator=torch.Generator().manual_seed(index))
    prompt = _ImagePrompt(image, 1.0 - 0.3 * index, start, end)
    for width in widths:
        made = torch.nn.Linear(16, width, bias=False), torch.nn.Linear(16, width, bias=False)
        for layer in made:
            layer.weight = torch.nn.Parameter(torch.randn(width, 16, generator=generator), requires_grad=False)
        prompt.add(width, made)
    for block, count in (("input", 12), ("middle", 1), ("output", 12)):
        for number in range(count):
            model.set_model_attn2_replace(prompt, block, number)
    return model


def scenario_an_image_prompt() -> None:
    _recorded_in(_image_prompt)


def scenario_an_image_prompt_within_a_range_of_steps() -> None:
    traced = _recorded_in(lambda model, index: _image_prompt(model, index, 5.0, 1.0), steps=6)
    # before, within and behind the range: three settings or sizes, and the first once more, of which no more than four
    # stay
    assert traced <= 12, traced


def scenario_a_library_s_attention() -> None:
    """SageAttention, in the place of attention by a node's override and by the host's own switch: one call of the
    graph, whose kernels nobody sees.
    """
    import sys
    from types import ModuleType

    import comfy.ldm.modules.attention as attention

    def sageattn(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tensor_layout: str = "HND", **more: Any
    ) -> torch.Tensor:
        out = torch.empty(q.size(), dtype=q.dtype, device=q.device)
        with torch._C.DisableTorchFunction():  # as an extension's kernel
            turned = [each.transpose(1, 2) if tensor_layout == "NHD" else each for each in (q * 0.9, k, v)]
            found = torch.nn.functional.scaled_dot_product_attention(*turned)
            out.copy_(found.transpose(1, 2) if tensor_layout == "NHD" else found)
        return out

    def in_its_place(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        heads: int,
        *args: Any,
        skip_reshape: bool = False,
        **kwargs: Any,
    ) -> torch.Tensor:
        if not skip_reshape:
            q, k, v = (each.view(each.shape[0], -1, heads, each.shape[-1] // heads) for each in (q, k, v))
        out = sageattn(q, k, v, tensor_layout="HND" if skip_reshape else "NHD", attn_mask=None)
        return (out.transpose(1, 2) if skip_reshape else out).reshape(out.shape[0], -1, heads * out.shape[-1])

    def overridden(model: Any, index: int) -> Any:
        model = model.clone()
        model.model_options["transformer_options"]["optimized_attention_override"] = lambda func, *args, **kwargs: (
            in_its_place(*args, **kwargs)
        )
        return model

    library = ModuleType("sageattention")
    library.sageattn = sageattn  # type: ignore[attr-defined]
    sys.modules["sageattention"] = library
    own = attention.optimized_attention
    try:
        _recorded_in(overridden, changes=False)
        model, twin = load("sd15"), load("sd15")
        fast, plain = fast_compile.apply(model), sample(twin)
        attention.sageattn, attention.optimized_attention = sageattn, attention.attention_sage
        expected = sample(twin)
        assert_differs(expected, plain)
        for _ in range(3):
            assert_close(sample(fast), expected)
        assert calls(model)["fused"] and not calls(model)["eager"], calls(model)
        assert not any(signature.live for signature in report_of(model).signatures)
    finally:
        attention.optimized_attention = own
        vars(attention).pop("sageattn", None)
        del sys.modules["sageattention"]
