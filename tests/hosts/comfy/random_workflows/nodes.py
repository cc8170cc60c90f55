"""Nodes between a model's loader and the sampler: ComfyUI's own, and patches as other packs' nodes put them in."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import comfy.sd
import torch
from driver import node

from random_workflows import beside, loras, patches
from random_workflows.models import Subject, noise

Values = tuple[Any, ...]


@dataclass(frozen=True)
class Kind:
    """A kind of node.

    Attributes:
        run: what it makes of a model patcher and the values of its inputs.
        draw: random values.
        fits: whether it is for this model.
    """

    run: Callable[..., Any]
    draw: Callable[[random.Random, Subject], Values] = lambda plan, subject: ()
    fits: Callable[[Subject], bool] = lambda subject: True


@dataclass(frozen=True)
class Node:
    """A node of a workflow: its kind, and what its inputs are set to."""

    kind: str
    values: Values


def _own(module: str, name: str) -> Callable[..., Any]:
    """A node of ComfyUI's own, of the old style or of the new one."""

    def run(model: Any, *values: Any) -> Any:
        return node(module, name)(model, *values)

    return run


def _old(module: str, name: str, method: str) -> Callable[..., Any]:
    """One in the old style whose function is asked for by its name."""

    def run(model: Any, *values: Any) -> Any:
        import importlib

        return getattr(getattr(importlib.import_module(f"comfy_extras.{module}"), name)(), method)(model, *values)[0]

    return run


def _any(*options: Any) -> Callable[[random.Random, Subject], Values]:
    """One of each of ``options``."""
    return lambda plan, subject: tuple(plan.choice(each) for each in options)


def _span(plan: random.Random) -> tuple[float, float]:
    return plan.choice(((0.0, 1.0), (0.0, 0.5), (0.3, 1.0), (0.2, 0.8)))


_UNET: Callable[[Subject], bool] = lambda subject: subject.unet  # noqa: E731
_XL = _UNET
_GUIDED: Callable[[Subject], bool] = lambda subject: subject.family.cfg > 1  # noqa: E731
_EPS: Callable[[Subject], bool] = lambda subject: subject.name.startswith(("SD1.5", "SD2", "SDXL"))  # noqa: E731
_FLOW: Callable[[Subject], bool] = lambda subject: not subject.unet  # noqa: E731


def tonemapped(model: Any, strength: float) -> Any:
    """LatentApplyOperationCFG with LatentOperationTonemapReinhard."""
    import comfy_extras.nodes_post_processing  # noqa: F401  the other one imports it, and it that one

    operation = node("nodes_latent", "LatentOperationTonemapReinhard")(strength)
    return node("nodes_latent", "LatentApplyOperationCFG")(model, operation)


def radiance(model: Any, start: float, end: float, tile: int) -> Any:
    """Chroma Radiance Options: another size of tiles for some of the steps."""
    return node("nodes_chroma_radiance", "ChromaRadianceOptions")(
        model=model, preserve_wrapper=True, start_sigma=start, end_sigma=end, nerf_tile_size=tile, force_sequential_txt_ids=False
    )  # fmt: skip


KINDS: dict[str, Kind] = {
    "Load LoRA": Kind(loras.loaded, lambda plan, subject: loras.drawn(plan)),
    "FreeU": Kind(_own("nodes_freelunch", "FreeU"), _any((1.1, 1.3), (1.2, 1.4), (0.9, 0.6), (0.2, 0.4)), _UNET),
    "FreeU_V2": Kind(_own("nodes_freelunch", "FreeU_V2"), _any((1.1, 1.3), (1.2, 1.4), (0.9, 0.6), (0.2, 0.4)), _UNET),
    "PerturbedAttentionGuidance": Kind(_own("nodes_pag", "PerturbedAttentionGuidance"), _any((1.0, 3.0)), _UNET),
    "SelfAttentionGuidance": Kind(_own("nodes_sag", "SelfAttentionGuidance"), _any((0.5, 1.0), (1.0, 2.0)), _EPS),
    "HyperTile": Kind(_own("nodes_hypertile", "HyperTile"), _any((32, 64), (2,), (0, 1), (False, True)), _EPS),
    "TomePatchModel": Kind(_own("nodes_tomesd", "TomePatchModel"), _any((0.3, 0.5)), _EPS),
    "PatchModelAddDownscale": Kind(
        _own("nodes_model_downscale", "PatchModelAddDownscale"),
        lambda plan, subject: (plan.choice((1, 2, 3)), 2.0, *_span(plan), plan.random() < 0.5, "bicubic", "bilinear"), _UNET,
    ),
    "UNetSelfAttentionMultiply": Kind(_own("nodes_attention_multiply", "UNetSelfAttentionMultiply"), _any(*[(1.0, 1.2, 0.8)] * 4), _UNET),
    "UNetCrossAttentionMultiply": Kind(_own("nodes_attention_multiply", "UNetCrossAttentionMultiply"), _any(*[(1.0, 1.2, 0.8)] * 4), _UNET),
    "SkipLayerGuidanceDiT": Kind(
        _own("nodes_slg", "SkipLayerGuidanceDiT"),
        lambda plan, subject: (plan.choice((2.0, 3.0)), *_span(plan), "0", plan.choice(("", "0", "1")), plan.choice((0.0, 0.7))),
        lambda subject: subject.blocks,
    ),
    "SkipLayerGuidanceDiTSimple": Kind(
        _own("nodes_slg", "SkipLayerGuidanceDiTSimple"), lambda plan, subject: (*_span(plan), "0", "0"), lambda subject: subject.blocks
    ),
    "SkipLayerGuidanceSD3": Kind(
        _own("nodes_sd3", "SkipLayerGuidanceSD3"), lambda plan, subject: (plan.choice(("0", "0, 1")), 3.0, *_span(plan)),
        lambda subject: subject.name.startswith("SD3"),
    ),
    "CFGZeroStar": Kind(_own("nodes_cfg", "CFGZeroStar"), fits=_GUIDED),
    "CFGNorm": Kind(_own("nodes_cfg", "CFGNorm"), _any((1.0, 0.7)), _GUIDED),
    "APG": Kind(_own("nodes_apg", "APG"), _any((1.0, 0.5), (5.0, 15.0), (0.0, -0.5)), _GUIDED),
    "TCFG": Kind(_own("nodes_tcfg", "TCFG"), fits=lambda subject: _GUIDED(subject) and len(subject.family.latent) == 4),
    "Mahiro": Kind(_own("nodes_mahiro", "Mahiro"), fits=_GUIDED),
    "FreSca": Kind(_own("nodes_fresca", "FreSca"), _any((1.0, 0.8), (1.25, 1.5), (4, 20)), lambda subject: len(subject.family.latent) == 4),
    "EpsilonScaling": Kind(_own("nodes_eps", "EpsilonScaling"), _any((1.005, 1.02)), _EPS),
    "TemporalScoreRescaling": Kind(_own("nodes_eps", "TemporalScoreRescaling"), _any((0.95, 1.1), (0.1, 1.0)), _EPS),
    "NAGuidance": Kind(_own("nodes_nag", "NAGuidance"), _any((2.0, 5.0), (0.5, 0.25), (1.5, 2.5))),
    "EasyCache": Kind(_own("nodes_easycache", "EasyCacheNode"), lambda plan, subject: (plan.choice((0.2, 2.0)), 0.1, 0.95, False)),
    "LazyCache": Kind(_own("nodes_easycache", "LazyCacheNode"), lambda plan, subject: (plan.choice((0.2, 2.0)), 0.1, 0.95, False)),
    "DifferentialDiffusion": Kind(_own("nodes_differential_diffusion", "DifferentialDiffusion"), _any((1.0, 0.6))),
    "ScaleROPE": Kind(
        _own("nodes_rope", "ScaleROPE"), _any(*[(1.0, 1.3), (0.0, 2.0)] * 3), lambda subject: subject.name.startswith(("Wan", "Lumina", "Z-"))
    ),
    "RenormCFG": Kind(_own("nodes_lumina2", "RenormCFG"), _any((0.5, 1.0), (1.0, 0.8)), lambda subject: subject.name == "Lumina 2"),
    "RescaleCFG": Kind(_old("nodes_model_advanced", "RescaleCFG", "patch"), _any((0.7, 0.3)), _EPS),
    "ModelSamplingDiscrete": Kind(
        _old("nodes_model_advanced", "ModelSamplingDiscrete", "patch"), _any(("eps", "v_prediction", "lcm", "x0"), (False, True)), _EPS
    ),
    "ModelSamplingContinuousEDM": Kind(
        _old("nodes_model_advanced", "ModelSamplingContinuousEDM", "patch"), _any(("v_prediction", "edm", "eps"), (120.0, 80.0), (0.002,)), _EPS
    ),
    "ModelSamplingSD3": Kind(_old("nodes_model_advanced", "ModelSamplingSD3", "patch"), _any((3.0, 1.5, 8.0)), _FLOW),
    "ModelSamplingFlux": Kind(
        _old("nodes_model_advanced", "ModelSamplingFlux", "patch"), _any((1.15, 1.0), (0.5,), (1024, 512), (1024,)),
        lambda subject: subject.name.startswith(("Flux", "Chroma")),
    ),
    "ModelComputeDtype": Kind(
        _old("nodes_model_advanced", "ModelComputeDtype", "patch"), _any(("default", "bf16", "fp32")), lambda subject: not subject.format
    ),
    "VideoLinearCFGGuidance": Kind(_old("nodes_video_model", "VideoLinearCFGGuidance", "patch"), _any((1.0, 2.0)), _EPS),
    "VideoTriangleCFGGuidance": Kind(
        _old("nodes_video_model", "VideoTriangleCFGGuidance", "patch"), _any((1.0, 2.0)), lambda subject: subject.name.startswith("Stable Video")
    ),
    "ModelSamplingStableCascade": Kind(
        _old("nodes_model_advanced", "ModelSamplingStableCascade", "patch"), _any((2.0, 5.0)), lambda subject: subject.name == "Stable Cascade"
    ),
    "WanContextWindowsManual": Kind(
        _own("nodes_context_windows", "WanContextWindowsManualNode"),
        lambda plan, subject: (plan.choice((5, 9)), 4, plan.choice(("standard_static", "standard_uniform")), 1, False,
                               plan.choice(("pyramid", "flat")), plan.random() < 0.5, plan.random() < 0.5),
        lambda subject: subject.name.startswith("Wan"),
    ),
    "LTXVContextWindows": Kind(
        _own("nodes_context_windows", "LTXVContextWindowsNode"),
        lambda plan, subject: (9, 0, plan.choice(("standard_static", "standard_uniform")), plan.choice(("pyramid", "flat")), plan.random() < 0.5),
        lambda subject: subject.name == "LTX-Video",
    ),
    "ContextWindowsManual": Kind(
        _own("nodes_context_windows", "ContextWindowsManualNode"),
        lambda plan, subject: (plan.choice((2, 3)), 1, plan.choice(("standard_static", "standard_uniform", "batched")), 1, False,
                               plan.choice(("pyramid", "flat")), 2, plan.random() < 0.3),
        lambda subject: subject.frames,
    ),
    "an image prompt": Kind(
        patches.image_prompt, lambda plan, subject: (plan.randrange(3), plan.choice((0.5, 1.0)), *_span(plan), plan.random() < 0.6), _UNET
    ),
    "attention couple": Kind(patches.couple, _any((1, 2), (0.3, 0.6)), _UNET),
    "patched skips": Kind(patches.skip_scaled, _any((0.9, 1.1), (False, True)), _UNET),
    "around blocks": Kind(patches.around_blocks, _any((0.95, 1.05), (0, 3)), lambda subject: subject.blocks),
    "attention override": Kind(patches.overridden, _any((0.9, 1.1))),
    "function wrapper": Kind(patches.wrapped, _any((0.98, 1.02))),
    "kept from step to step": Kind(patches.kept, _any((0.1, 0.3), ("attn1_output", "attn2_output", "middle")), _UNET),
    "noise in attention": Kind(patches.noisy, _any((0.01, 0.1), (False, True)), _UNET),
    "another way by sigma": Kind(patches.by_sigma, _any((0.3, 0.5, 0.8), ("input", "output")), _UNET),
    "a block's residual again": Kind(patches.residual_again, _any((2, 3), (0, 1)), lambda subject: subject.blocks),
    "a block that hardly changes": Kind(patches.hardly_changed, _any((0.05, 0.3, 3.0)), lambda subject: subject.blocks),
    "ModelMerge": Kind(beside.merged, beside.draw_merge, lambda subject: not subject.format),
    "Load LoRA (Bypass)": Kind(beside.bypassed, lambda plan, subject: loras.drawn(plan), lambda subject: hasattr(comfy.sd, "load_bypass_lora_for_models")),
    "HypernetworkLoader": Kind(
        beside.hypernetwork, _any((1, 5), ("linear", "relu", "swish", "mish"), (False, True), (1.0, 0.5)), lambda subject: subject.unet and _EPS(subject)
    ),
    "QwenImageDiffsynthControlnet": Kind(
        beside.diff_synth, _any((1, 2), (1.0, 0.5), (False, True)), lambda subject: subject.name.startswith("Qwen") and beside.has_patches()
    ),
    "ZImageFunControlnet": Kind(
        beside.z_image_control, _any((1, 2), (1.0, 0.5)),
        lambda subject: subject.name.startswith("Z-Image") and beside.has_patches("comfy.ldm.lumina.controlnet"),
    ),
    "WanUni3CControlnetApply": Kind(
        beside.uni3c, lambda plan, subject: (plan.randrange(3), plan.choice((1.0, 0.5)), *_span(plan)),
        lambda subject: subject.name.startswith(("Wan 2.1", "Wan 2.2 image")) and beside.has_patches("comfy.ldm.wan.uni3c"),
    ),
    "USOStyleReference": Kind(beside.style_of, _any((1, 2)), lambda subject: subject.name in ("Flux", "Flux Kontext") and beside.has_patches()),
    "FluxKVCache": Kind(_own("nodes_flux", "FluxKVCache"), fits=lambda subject: subject.name.startswith("Flux")),
    "CFGOverride": Kind(_own("nodes_custom_sampler", "CFGOverride"), lambda plan, subject: (plan.choice((1.0, 2.0)), *_span(plan)), _GUIDED),
    "PerpNeg": Kind(
        lambda model, seed, width: node("nodes_perpneg", "PerpNeg")(model, [[noise(1, 77, width)(seed), {}]], 1.0),
        lambda plan, subject: (plan.randrange(3), subject.family.context[1]), lambda subject: subject.name == "SD1.5",
    ),
    "LatentApplyOperationCFG": Kind(tonemapped, _any((1.0, 0.5)), lambda subject: len(subject.family.latent) == 4),
    "ChromaRadianceOptions": Kind(
        radiance, lambda plan, subject: (*_span(plan)[::-1], plan.choice((-1, 64, 0))), lambda subject: subject.name == "Chroma Radiance"
    ),
    "ModelSamplingAuraFlow": Kind(
        _old("nodes_model_advanced", "ModelSamplingAuraFlow", "patch_aura"), _any((1.73, 3.0)), _FLOW
    ),
    "ModelSamplingContinuousV": Kind(
        _old("nodes_model_advanced", "ModelSamplingContinuousV", "patch"), _any(("v_prediction",), (500.0, 80.0), (0.03,)), _EPS
    ),
    "ModelNoiseScale": Kind(_old("nodes_model_advanced", "ModelNoiseScale", "patch"), _any((1.0, 1.5)), _FLOW),
    "ModelAttentionBackend": Kind(_old("nodes_model_advanced", "ModelAttentionBackend", "patch"), _any(("pytorch attention",))),
    "ModelSamplingLTXV": Kind(_own("nodes_lt", "ModelSamplingLTXV"), _any((2.05, 3.0), (0.95, 0.5)), lambda subject: subject.name.startswith("LTX")),
    "LTXVSpatioTemporalGuidance": Kind(
        _own("nodes_lt", "LTXVSpatioTemporalGuidance"), lambda plan, subject: (plan.choice((1.0, 0.5)), plan.choice(("0", "0, 1")), *_span(plan)),
        lambda subject: subject.name.startswith("LTX"),
    ),
    "LTXVModalityGuidance": Kind(_own("nodes_lt", "LTXVModalityGuidance"), lambda plan, subject: (plan.choice((1.0, 3.0)), *_span(plan)), lambda subject: subject.name == "LTX-2"),
    "WanAnimate2Cache": Kind(_own("nodes_wan", "WanAnimate2Cache"), _any(("cpu",), ("default", "int8")), lambda subject: subject.name == "Wan Animate 2"),
    "UNetTemporalAttentionMultiply": Kind(
        _own("nodes_attention_multiply", "UNetTemporalAttentionMultiply"), _any(*[(1.0, 1.2, 0.8)] * 4), lambda subject: subject.name.startswith("Stable Video")
    ),
    "TorchCompileModel": Kind(_own("nodes_torch_compile", "TorchCompileModel"), _any(("eager",)), lambda subject: subject.dtype == torch.float32 and not subject.frames),
}  # fmt: skip


def drawn(plan: random.Random, subject: Subject) -> Node:
    """A random node that is for this model; every third is a LoRA."""
    fitting = [name for name, kind in KINDS.items() if kind.fits(subject)]
    name = "Load LoRA" if plan.random() < 0.33 else plan.choice(fitting)
    return Node(name, KINDS[name].draw(plan, subject))
