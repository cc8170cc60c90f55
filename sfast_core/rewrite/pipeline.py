"""The passes in their order. A pass is a function from a graph to the number of places that it changed; each can be left out by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph

from ..weights import Weight
from .canonicalise import canonicalise
from .carry_bias import carry_bias
from .channels_last import convolutions_channels_last, images_channels_last
from .convolution_as_linear import convolution_as_linear
from .copies import drop_copies
from .fold_into_quantise import fold_into_quantise
from .fuse_ada_layer_norm import fuse_ada_layer_norm
from .fuse_ada_rms_norm import fuse_ada_rms_norm
from .fuse_attention import fuse_attention
from .fuse_conv import fuse_conv_act
from .fuse_conv_shortcut import fuse_conv_shortcut
from .fuse_gated_sum import fuse_gated_sum
from .fuse_geglu import fuse_geglu
from .fuse_group_norm import fuse_group_norm_act
from .fuse_layer_norm import fuse_add_layer_norm
from .fuse_linear_act import fuse_linear_act
from .fuse_linear_add import HasImpl, fuse_linear_add
from .fuse_norm_quantise import fuse_norm_quantise
from .fuse_norm_rope import fuse_norm_rope
from .fuse_scaled_glu import fuse_scaled_glu
from .fuse_sinusoids import fuse_sinusoids
from .fuse_upsample_conv import fuse_upsample_conv
from .graph import drop_unused, drop_unused_weights
from .pack_context import pack_context
from .pack_embedding import pack_embedding
from .pack_qkv import pack_qkv
from .place_constants import place_constants
from .recover_attention import recover_attention
from .recover_rms_norm import recover_rms_norm
from .recover_scaled_linear import recover_scaled_linear
from .rejoin_slices import rejoin_slices
from .share_halves import share_halves
from .simplify import drop_units, fold_constants, recover_silu, share_common, simplify_shapes
from .spell_out_attention import spell_out_attention
from .split_concat import split_concat
from .split_projections import split_projections
from .tokens_in_rows import tokens_in_rows

Pass = Callable[[Graph], int]


@dataclass
class Rewritten:
    """What the passes did: places changed by pass, in order, and the size of the graph before and after."""

    counts: dict[str, int] = field(default_factory=dict)
    nodes_before: int = 0
    nodes_after: int = 0


def no_impl(*_: Any) -> bool:
    """No kernel computes any op: what a machine without CUDA says."""
    return False


def passes(may_pack: Callable[[Weight], bool] | None, has_impl: HasImpl = no_impl) -> dict[str, Pass]:
    """Every pass by name, in order.

    Args:
        may_pack: says whether a weight may be laid out as its layout says; None leaves all as they lie.
        has_impl: says whether a kernel computes a call of an op here, for ops that are worth it only then.
    """
    table: dict[str, Pass] = {
        "canonicalise": canonicalise,
        "drop_units": drop_units,
        "drop_copies": drop_copies,
        "recover_silu": recover_silu,
        "rejoin_slices": rejoin_slices,
        "spell_out_attention": spell_out_attention,
        "simplify_shapes": simplify_shapes,
        "share_common": share_common,
        "recover_rms_norm": recover_rms_norm,
        "fold_constants": fold_constants,
        "place_constants": place_constants,
        "recover_scaled_linear": lambda graph: recover_scaled_linear(graph, has_impl),
        "fuse_sinusoids": lambda graph: fuse_sinusoids(graph, has_impl),
        "recover_attention": recover_attention,
        "fuse_norm_rope": lambda graph: fuse_norm_rope(graph, has_impl),
        "tokens_in_rows": tokens_in_rows,
        "fuse_conv_shortcut": lambda graph: fuse_conv_shortcut(graph, has_impl),
        "convolution_as_linear": convolution_as_linear,
        "fuse_linear_add": lambda graph: fuse_linear_add(graph, has_impl),
        "fuse_group_norm_act": fuse_group_norm_act,
        "split_concat": lambda graph: split_concat(graph, has_impl),
        "fuse_upsample_conv": fuse_upsample_conv,
        "fuse_conv_act": fuse_conv_act,
        "fuse_add_layer_norm": lambda graph: fuse_add_layer_norm(graph, has_impl),
        "fuse_ada_layer_norm": lambda graph: fuse_ada_layer_norm(graph, has_impl),
        "carry_bias": lambda graph: carry_bias(graph, has_impl),
        "fuse_norm_quantise": lambda graph: fuse_norm_quantise(graph, has_impl),
        "fuse_ada_rms_norm": lambda graph: fuse_ada_rms_norm(graph, has_impl),
        "fuse_geglu": fuse_geglu,
        "split_projections": lambda graph: split_projections(graph, has_impl),
        "fuse_linear_act": fuse_linear_act,
        "fuse_attention": fuse_attention,
        "fuse_scaled_glu": lambda graph: fuse_scaled_glu(graph, has_impl),
        "fold_into_quantise": lambda graph: fold_into_quantise(graph, has_impl),
        "fuse_gated_sum": fuse_gated_sum,
        "share_halves": lambda graph: share_halves(graph, has_impl),
        "images_channels_last": images_channels_last,
    }
    if may_pack is not None:
        allowed = may_pack
        table |= {
            "pack_context": lambda graph: pack_context(graph, allowed),
            "pack_embedding": lambda graph: pack_embedding(graph, allowed),
            "pack_qkv": lambda graph: pack_qkv(graph, allowed),
            "convolutions_channels_last": lambda graph: convolutions_channels_last(graph, allowed),
        }
    table["simplify_shapes_again"] = simplify_shapes
    return table


def rewrite(
    graph: Graph,
    may_pack: Callable[[Weight], bool] | None,
    disabled: tuple[str, ...] = (),
    has_impl: HasImpl = no_impl,
) -> Rewritten:
    """Run the passes over ``graph`` in place, less those named in ``disabled``. For the rest see :func:`passes`.

    Raises:
        ValueError: ``disabled`` names a pass that doesn't exist.
    """
    table = passes(may_pack, has_impl)
    unknown = set(disabled) - set(passes(lambda _: True))
    if unknown:
        raise ValueError(f"disabled_passes: got {', '.join(sorted(unknown))}, known are {', '.join(passes(lambda _: True))}")
    report = Rewritten(nodes_before=len(graph.nodes))
    drop_unused(graph)
    with torch.inference_mode(False), torch.no_grad():
        for name, run in table.items():
            if name not in disabled:
                report.counts[name] = run(graph)
    drop_unused(graph)
    drop_unused_weights(graph)
    graph.lint()
    report.nodes_after = len(graph.nodes)
    return report
