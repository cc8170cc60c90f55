"""The rewrite passes in their order. A pass is a function that changes a graph in place and returns how many places it
changed; calls whose results nobody uses any more are removed behind it. Each can be left out by name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph

from .graph import drop_unused, drop_unused_weights
from .passes.canonicalise import canonicalise
from .passes.carry_bias import carry_bias
from .passes.channels_last import convolutions_channels_last, images_channels_last
from .passes.convolution_as_linear import convolution_as_linear
from .passes.copies import drop_copies
from .passes.eight_bits import InEightBits, eight_bits, pack_eight_bits
from .passes.fold_into_quantise import fold_into_quantise
from .passes.frames_as_images import frames_as_images
from .passes.fuse_ada_layer_norm import fuse_ada_layer_norm
from .passes.fuse_ada_rms_norm import fuse_ada_rms_norm
from .passes.fuse_attention import fuse_attention
from .passes.fuse_conv import fuse_conv_act
from .passes.fuse_conv_shortcut import fuse_conv_shortcut
from .passes.fuse_gated_sum import fuse_gated_sum
from .passes.fuse_group_norm import fuse_group_norm_act
from .passes.fuse_layer_norm import fuse_add_layer_norm
from .passes.fuse_linear import fuse_linear
from .passes.fuse_norm_pad_video import fuse_norm_pad_video
from .passes.fuse_norm_quantise import fuse_norm_quantise
from .passes.fuse_norm_rope import fuse_norm_rope
from .passes.fuse_scaled_glu import fuse_scaled_glu
from .passes.fuse_sinusoids import fuse_sinusoids
from .passes.fuse_upsample_conv import fuse_upsample_conv
from .passes.join_parts import join_parts
from .passes.keep_frames import keep_frames
from .passes.pack_gated import pack_gated
from .passes.pack_linears import pack_context, pack_embedding, pack_qkv
from .passes.place_constants import place_constants
from .passes.recover_attention import recover_attention
from .passes.recover_gelu import recover_gelu
from .passes.recover_integer_products import recover_integer_products
from .passes.recover_linear import recover_linear
from .passes.recover_quantise import recover_quantise
from .passes.recover_rms_norm import recover_rms_norm
from .passes.recover_scaled_linear import recover_scaled_linear
from .passes.rejoin_packed import rejoin_packed
from .passes.rejoin_slices import rejoin_slices
from .passes.route_experts import route_experts
from .passes.share_halves import share_halves
from .passes.shuffles import shuffles_innermost
from .passes.simplify import drop_units, fold_constants, recover_silu, share_common, simplify_shapes
from .passes.spell_out_attention import spell_out_attention
from .passes.split_concat import split_concat
from .passes.split_projections import split_projections
from .passes.tokens_in_rows import tokens_in_rows
from .passes.turn_by_angles import turn_by_angles
from .patterns import HasImpl, MayLay


@dataclass(frozen=True)
class Pass:
    """A pass and its place in the order.

    Args:
        run: the pass. It is given the graph and, where it has parameters of these names, ``has_impl``, ``may_pack`` and
            ``in_eight_bits``: see :func:`passes`.
        after: the names of the passes whose work it builds on. Any order that this allows gives the same graph.
        name: of the pass, where it isn't that of the function.
    """

    run: Callable[..., int]
    after: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.run.__name__)


@dataclass
class Rewritten:
    """What the passes did: how many places each changed, in order, and the graph's size before and after."""

    counts: dict[str, int] = field(default_factory=dict)
    nodes_before: int = 0
    nodes_after: int = 0


def no_impl(*_: Any) -> bool:
    """``has_impl`` of a machine without CUDA: no kernel computes any op."""
    return False


#: One of the orders that ``after`` allows; tests run others.
PASSES = (
    Pass(canonicalise),
    Pass(drop_units, after="canonicalise"),
    Pass(drop_copies, after="canonicalise"),
    Pass(recover_silu, after="canonicalise"),
    Pass(recover_gelu, after="canonicalise"),
    Pass(rejoin_slices, after="canonicalise"),
    Pass(spell_out_attention, after="canonicalise"),
    Pass(simplify_shapes, after="spell_out_attention"),
    Pass(share_common, after="canonicalise"),
    Pass(shuffles_innermost, after="simplify_shapes share_common"),
    Pass(recover_rms_norm, after="simplify_shapes share_common"),
    Pass(fold_constants, after="canonicalise shuffles_innermost"),
    Pass(place_constants, after="fold_constants"),
    Pass(recover_linear, after="canonicalise simplify_shapes share_common"),
    Pass(recover_scaled_linear, after="canonicalise recover_linear"),
    Pass(route_experts, after="recover_silu recover_gelu recover_scaled_linear"),
    Pass(recover_integer_products, after="canonicalise simplify_shapes share_common"),
    Pass(recover_quantise, after="canonicalise simplify_shapes share_common"),
    Pass(fuse_sinusoids, after="place_constants"),
    Pass(recover_attention, after="simplify_shapes"),
    Pass(fuse_norm_rope, after="simplify_shapes share_common recover_rms_norm"),
    Pass(turn_by_angles, after="place_constants fuse_norm_rope"),
    Pass(fold_constants, after="turn_by_angles", name="fold_constants_again"),
    Pass(join_parts, after="simplify_shapes share_common rejoin_slices"),
    Pass(tokens_in_rows, after="recover_scaled_linear fuse_norm_rope join_parts"),
    Pass(fuse_norm_pad_video, after="recover_silu simplify_shapes place_constants"),
    Pass(frames_as_images, after="recover_silu simplify_shapes fuse_norm_pad_video"),
    Pass(fuse_conv_shortcut, after="canonicalise"),
    Pass(convolution_as_linear, after="share_common frames_as_images fuse_conv_shortcut"),
    Pass(
        eight_bits,
        after="recover_integer_products recover_scaled_linear route_experts tokens_in_rows convolution_as_linear",
    ),
    Pass(
        fuse_linear,
        after="recover_silu recover_gelu route_experts tokens_in_rows convolution_as_linear eight_bits",
    ),
    Pass(fuse_group_norm_act, after="recover_silu simplify_shapes frames_as_images"),
    Pass(split_concat, after="fuse_linear fuse_group_norm_act"),
    Pass(fuse_upsample_conv, after="canonicalise"),
    Pass(fuse_conv_act, after="fuse_linear fuse_group_norm_act fuse_upsample_conv frames_as_images"),
    Pass(fuse_add_layer_norm, after="rejoin_slices fuse_linear"),
    Pass(fuse_ada_layer_norm, after="fuse_add_layer_norm"),
    Pass(carry_bias, after="fuse_norm_pad_video fuse_conv_act fuse_add_layer_norm"),
    Pass(fuse_norm_quantise, after="recover_rms_norm recover_quantise fuse_ada_layer_norm eight_bits"),
    Pass(fuse_ada_rms_norm, after="fuse_norm_quantise"),
    Pass(split_projections, after="fuse_ada_layer_norm fuse_ada_rms_norm"),
    Pass(fuse_attention, after="recover_attention fuse_norm_rope"),
    Pass(fuse_scaled_glu, after="recover_silu recover_gelu recover_scaled_linear eight_bits"),
    Pass(fold_into_quantise, after="fuse_norm_quantise fuse_scaled_glu"),
    Pass(fuse_gated_sum, after="fuse_norm_quantise fuse_ada_rms_norm fold_into_quantise"),
    Pass(share_halves, after="fuse_attention"),
    Pass(images_channels_last, after="split_concat fuse_conv_act"),
    Pass(keep_frames, after="images_channels_last"),
    Pass(pack_gated, after="fuse_linear fuse_norm_quantise split_projections"),
    Pass(pack_context, after="fuse_norm_rope split_projections pack_gated"),
    Pass(pack_embedding, after="fuse_norm_rope split_projections pack_gated"),
    Pass(pack_qkv, after="fuse_norm_rope split_projections pack_gated"),
    Pass(rejoin_packed, after="pack_context pack_qkv"),
    Pass(pack_eight_bits, after="fuse_norm_rope fold_into_quantise fuse_gated_sum"),
    Pass(convolutions_channels_last, after="fuse_conv_act"),
    Pass(
        simplify_shapes,
        after="fuse_group_norm_act fuse_attention pack_context pack_embedding pack_qkv pack_eight_bits",
        name="simplify_shapes_again",
    ),
)

#: Former passes, which saved settings may name, and those that do their work now.
_FORMER = {"fuse_geglu": "fuse_linear", "fuse_linear_act": "fuse_linear", "fuse_linear_add": "fuse_linear"}


def passes(
    may_pack: MayLay | None,
    has_impl: HasImpl = no_impl,
    order: tuple[Pass, ...] | None = None,
    in_eight_bits: InEightBits | None = None,
) -> dict[str, Callable[[Graph], int]]:
    """Every pass by name, in order, as a function of the graph alone.

    Args:
        may_pack: tells whether a weight may be laid out as its layout says. None: no weight is laid out, and passes
            that need this are left out.
        has_impl: tells whether a kernel computes a call of an op here; some ops are made only then.
        order: the passes, where not :data:`PASSES`.
        in_eight_bits: chooses the linear layers to compute in 8 bits. None: passes that need this are left out.
    """
    given = {"has_impl": has_impl, "may_pack": may_pack, "in_eight_bits": in_eight_bits}
    table: dict[str, Callable[[Graph], int]] = {}
    for item in PASSES if order is None else order:
        wanted = {name: given[name] for name in inspect.signature(item.run).parameters if name in given}
        if None not in wanted.values():
            table[item.name] = functools.partial(_run, functools.partial(item.run, **wanted))
    return table


def _run(change: Callable[[Graph], int], graph: Graph) -> int:
    """Run a pass, and remove the calls whose results nobody uses any more."""
    changed = change(graph)
    drop_unused(graph)
    return changed


def known_passes(disabled: tuple[str, ...]) -> tuple[str, ...]:
    """The passes that the user turned off, with former names replaced.

    Raises:
        ValueError: a name isn't that of a pass.
    """
    names = tuple(_FORMER.get(name, name) for name in disabled)
    known = passes(lambda _: True, in_eight_bits=lambda *_: {})
    if unknown := sorted(set(names) - set(known)):
        raise ValueError(f"disabled_passes: got {', '.join(unknown)}, known are {', '.join(known)}")
    return names


def rewrite(
    graph: Graph,
    may_pack: MayLay | None,
    disabled: tuple[str, ...] = (),
    has_impl: HasImpl = no_impl,
    order: tuple[Pass, ...] | None = None,
    in_eight_bits: InEightBits | None = None,
) -> Rewritten:
    """Run the passes over ``graph``, except those named in ``disabled``. For the other arguments see :func:`passes`.

    Raises:
        ValueError: ``disabled`` names a pass that doesn't exist.
    """
    table, disabled = passes(may_pack, has_impl, order, in_eight_bits), known_passes(disabled)
    report = Rewritten(nodes_before=len(graph.nodes))
    drop_unused(graph)
    with torch.inference_mode(False), torch.no_grad():
        for name, run in table.items():
            if name not in disabled:
                report.counts[name] = run(graph)
    drop_unused_weights(graph)
    graph.lint()
    report.nodes_after = len(graph.nodes)
    return report
