"""What the passes make of diffusers' transformers, a small one of each family, with a kernel for every op: golden
counts.

The counts are of the release that :data:`COUNTED` names; with another one only the results are compared.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

diffusers = pytest.importorskip("diffusers")

from sfast_core.capture import Signature, Trace, Untraceable  # noqa: E402
from sfast_core.rewrite import rewrite  # noqa: E402
from sfast_core.runtime.store import WeightStore  # noqa: E402
from tests.rewrite.diffusers_transformers import DTYPE, TRANSFORMERS  # noqa: E402
from tests.tracing import evaluate, try_record  # noqa: E402

COUNTED = "0.42"
#: family: how many places each pass changed. Passes that lay out images, and those that change nothing, are left out.
GOLDEN: dict[str, dict[str, int]] = {
    "flux": {
        "fuse_sinusoids": 1,
        "fuse_norm_rope": 5,
        "fuse_linear": 6,
        "fuse_add_layer_norm": 6,
        "fuse_ada_layer_norm": 6,
        "fuse_attention": 2,
        "fuse_gated_sum": 3,
        "pack_embedding": 4,
        "pack_qkv": 9,
    },
    "sd3": {
        "recover_rms_norm": 8,
        "fuse_sinusoids": 1,
        "fuse_norm_rope": 6,
        "fuse_linear": 6,
        "fuse_conv_act": 1,
        "fuse_add_layer_norm": 8,
        "fuse_ada_layer_norm": 8,
        "fuse_attention": 2,
        "pack_embedding": 5,
        "pack_qkv": 12,
    },
    "qwen_image": {
        "recover_rms_norm": 5,
        "fuse_norm_rope": 5,
        "fuse_linear": 3,
        "fuse_add_layer_norm": 4,
        "fuse_ada_layer_norm": 4,
        "fuse_attention": 1,
        "pack_embedding": 3,
        "pack_qkv": 6,
    },
    "wan": {
        "fuse_sinusoids": 1,
        "fuse_norm_rope": 4,
        "fuse_linear": 4,
        "fuse_add_layer_norm": 4,
        "fuse_ada_layer_norm": 2,
        "fuse_attention": 2,
        "fuse_gated_sum": 1,
        "pack_qkv": 5,
    },
    "ltx": {
        "recover_rms_norm": 2,
        "fuse_sinusoids": 1,
        "fuse_norm_rope": 2,
        "fuse_linear": 4,
        "fuse_add_layer_norm": 1,
        "fuse_ada_layer_norm": 1,
        "fuse_ada_rms_norm": 2,
        "fuse_attention": 2,
        "fuse_gated_sum": 3,
        "pack_qkv": 5,
    },
    "chroma": {
        "fuse_sinusoids": 1,
        "fuse_norm_rope": 5,
        "fuse_linear": 5,
        "fuse_add_layer_norm": 6,
        "fuse_ada_layer_norm": 6,
        "fuse_attention": 2,
        "fuse_gated_sum": 3,
        "pack_qkv": 9,
    },
    "hunyuan_video": {
        "recover_rms_norm": 6,
        "fuse_sinusoids": 2,
        "fuse_norm_rope": 5,
        "fuse_linear": 12,
        "fuse_add_layer_norm": 8,
        "fuse_ada_layer_norm": 6,
        "fuse_attention": 3,
        "fuse_gated_sum": 3,
        "pack_embedding": 4,
        "pack_qkv": 12,
    },
    "cogvideox": {
        "fuse_sinusoids": 1,
        "fuse_linear": 3,
        "fuse_conv_act": 1,
        "fuse_add_layer_norm": 8,
        "fuse_ada_layer_norm": 5,
        "fuse_attention": 1,
        "pack_embedding": 3,
        "pack_qkv": 3,
    },
    "pixart": {
        "fuse_sinusoids": 1,
        "fuse_linear": 4,
        "fuse_conv_act": 1,
        "fuse_add_layer_norm": 3,
        "fuse_ada_layer_norm": 3,
        "fuse_attention": 2,
        "fuse_gated_sum": 1,
        "pack_qkv": 5,
    },
    "aura_flow": {
        "fuse_norm_rope": 1,
        "fuse_linear": 6,
        "fuse_add_layer_norm": 12,
        "fuse_attention": 2,
        "fuse_gated_sum": 6,
        "pack_gated": 3,
        "pack_embedding": 4,
        "pack_qkv": 9,
    },
    "sana": {
        "recover_rms_norm": 1,
        "fuse_sinusoids": 1,
        "fuse_linear": 3,
        "fuse_conv_act": 1,
        "fuse_add_layer_norm": 3,
        "fuse_ada_layer_norm": 3,
        "fuse_attention": 1,
        "fuse_gated_sum": 1,
        "pack_qkv": 5,
    },
}
#: What can't be traced, and the reason.
UNTRACED: dict[str, str] = {
    "lumina2": "tolist reads a tensor's value into Python",
    "mochi": "nonzero returns a tensor whose shape depends on another's values",
}
PREFIXES = ("fuse", "pack", "recover_rms", "recover_silu", "split_projections")


def _traced(family: str) -> tuple[torch.nn.Module, Any, Trace | Untraceable, list[torch.Tensor]]:
    """The model, its result, its trace or why there is none, and the tensors that it was given."""
    torch.manual_seed(0)
    try:
        net, given = TRANSFORMERS[family]()
    except ImportError as error:
        pytest.skip(str(error))
    net = net.to(DTYPE).eval()
    result, found = try_record(net, **given)
    if isinstance(found, Untraceable):  # a cache is filled at the first call
        result, found = try_record(net, **given)
    return net, result, found, Signature((), given).tensors


@pytest.mark.parametrize("family", [family for family in TRANSFORMERS if family not in UNTRACED])
def test_what_a_family_becomes(family: str) -> None:
    net, result, found, inputs = _traced(family)  # the weights are the model's
    assert isinstance(found, Trace), found.reason
    counts = rewrite(found.graph, WeightStore().may_pack, has_impl=lambda *_: True).counts
    (got,), (wanted,) = evaluate(found.graph, inputs), result
    assert not net.training
    assert float((got.float() - wanted.float()).norm() / wanted.float().norm()) < 2e-2
    if diffusers.__version__.startswith(COUNTED):
        assert {name: count for name, count in counts.items() if count and name.startswith(PREFIXES)} == GOLDEN[family]


@pytest.mark.parametrize("family", UNTRACED)
def test_why_a_family_is_not_traced(family: str) -> None:
    *_, found, _ = _traced(family)
    assert isinstance(found, Untraceable) and UNTRACED[family] in found.reason
