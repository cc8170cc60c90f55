"""What the passes make of a small model of each family, and that any order makes the same that the passes allow."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch
from torch.fx import Graph, Node

from sfast_core.rewrite import rewrite
from sfast_core.rewrite.pipeline import PASSES, Pass
from sfast_core.runtime.store import WeightStore
from tests.rewrite.families import FAMILIES
from tests.tracing import evaluate, trace

#: family, whether kernels compute all ops: the pass and how many places it changed, where it changed any
COUNTS: dict[tuple[str, bool], str] = {
    ("unet", False): (
        "canonicalise:84 share_common:1 fold_constants:1 convolution_as_linear:2 fuse_linear:4 fuse_group_norm_act:5 "
        "fuse_conv_act:7 fuse_add_layer_norm:6 fuse_attention:4 images_channels_last:2 pack_context:4 pack_embedding:2 "
        "pack_qkv:6 convolutions_channels_last:7 simplify_shapes_again:4"
    ),
    ("unet", True): (
        "canonicalise:84 share_common:1 fold_constants:1 fuse_conv_shortcut:2 fuse_linear:5 fuse_group_norm_act:5 "
        "split_concat:1 fuse_conv_act:5 fuse_add_layer_norm:6 carry_bias:1 fuse_attention:4 images_channels_last:3 "
        "pack_context:4 pack_embedding:2 pack_qkv:6 convolutions_channels_last:7 simplify_shapes_again:4"
    ),
    ("transformer", False): (
        "canonicalise:95 rejoin_slices:1 share_common:6 fold_constants:1 fuse_linear:4 fuse_add_layer_norm:6 "
        "split_projections:1 fuse_attention:2 fuse_gated_sum:2 pack_embedding:3"
    ),
    ("transformer", True): (
        "canonicalise:95 rejoin_slices:1 share_common:6 fold_constants:1 fuse_sinusoids:1 fuse_norm_rope:5 fuse_linear:4 "
        "fuse_add_layer_norm:6 fuse_ada_layer_norm:5 split_projections:2 fuse_attention:2 fuse_gated_sum:2 pack_embedding:3 "
        "simplify_shapes_again:24"
    ),
    ("text encoder", False): (
        "canonicalise:23 spell_out_attention:1 simplify_shapes:4 fuse_linear:2 fuse_add_layer_norm:5 fuse_attention:2 "
        "pack_qkv:3"
    ),
    ("text encoder", True): (
        "canonicalise:23 spell_out_attention:1 simplify_shapes:4 fuse_linear:2 fuse_add_layer_norm:5 fuse_attention:2 "
        "pack_qkv:3"
    ),
    ("decoder", False): (
        "canonicalise:33 drop_units:1 recover_silu:1 simplify_shapes:2 share_common:1 recover_attention:1 "
        "convolution_as_linear:5 fuse_group_norm_act:6 fuse_upsample_conv:1 fuse_conv_act:5 fuse_attention:1 "
        "images_channels_last:2 pack_embedding:2 convolutions_channels_last:6 simplify_shapes_again:4"
    ),
    ("decoder", True): (
        "canonicalise:33 drop_units:1 recover_silu:1 simplify_shapes:2 share_common:1 recover_attention:1 fuse_conv_shortcut:1 "
        "convolution_as_linear:4 fuse_linear:1 fuse_group_norm_act:6 fuse_upsample_conv:1 fuse_conv_act:4 fuse_attention:1 "
        "images_channels_last:2 pack_embedding:2 convolutions_channels_last:6 simplify_shapes_again:4"
    ),
    ("sandwiched", False): ("canonicalise:24 share_common:1 fuse_linear:1 fuse_attention:1 fuse_gated_sum:2"),
    ("sandwiched", True): (
        "canonicalise:24 share_common:1 fuse_linear:1 fuse_ada_rms_norm:2 fuse_attention:1 fuse_gated_sum:1 pack_gated:1"
    ),
    ("quantised", False): ("canonicalise:20 share_common:1 fuse_add_layer_norm:1 fuse_attention:1 fuse_gated_sum:2"),
    ("quantised", True): (
        "canonicalise:20 share_common:1 recover_scaled_linear:7 fuse_add_layer_norm:1 fuse_ada_layer_norm:1 "
        "fuse_norm_quantise:2 fuse_attention:1 fuse_scaled_glu:1 fuse_gated_sum:1"
    ),
}


def rewritten(name: str, has: bool, order: tuple[Pass, ...] = PASSES) -> tuple[dict[str, int], Graph, Any, Any]:
    """The counts, the graph, and what it and the model compute."""
    make, inputs = FAMILIES[name]
    torch.manual_seed(0)
    net, given = make(), inputs()
    graph = trace(net, *given).graph
    counts = rewrite(graph, WeightStore().may_pack, has_impl=lambda *_: has, order=order).counts
    with torch.no_grad():
        return counts, graph, evaluate(graph, given)[0], net(*given)


def described(graph: Graph) -> Counter[Any]:
    """Each call with what its arguments are calls of."""

    def arg(value: Any) -> Any:
        if isinstance(value, Node):
            return str(value.target) if value.op != "placeholder" else tuple(value.meta["val"].shape)
        return tuple(map(arg, value)) if isinstance(value, (tuple, list)) else repr(value)

    return Counter((str(node.target), arg(node.args)) for node in graph.nodes if node.op != "placeholder")


def another_order(seed: int) -> tuple[Pass, ...]:
    """A random one of those that the passes allow."""
    chance, left, order = random.Random(seed), list(PASSES), []
    while left:
        names = {item.name for item in left}
        free = [item for item in left if names.isdisjoint(item.after.split())]
        order.append(chance.choice(free))
        left.remove(order[-1])
    return tuple(order)


@pytest.mark.parametrize(("name", "has"), COUNTS)
def test_what_becomes_of_it(name: str, has: bool) -> None:
    counts, _, mine, theirs = rewritten(name, has)
    assert {key: number for key, number in counts.items() if number} == {
        key: int(number) for key, number in (word.split(":") for word in COUNTS[name, has].split())
    }
    quantised = name == "quantised"  # twice rounded to 8 bits
    assert (mine - theirs).float().norm() <= (2e-2 if quantised else 1e-5) * theirs.float().norm()


@pytest.mark.parametrize("seed", range(4))
def test_any_order_that_is_allowed_makes_the_same(seed: int) -> None:
    order = another_order(seed)
    assert order != PASSES and {item.name for item in order} == {item.name for item in PASSES}
    for name, has in COUNTS:
        counts, graph, *_ = rewritten(name, has)
        others, other, *_ = rewritten(name, has, order)
        assert counts == others and described(graph) == described(other), f"{name}: {[item.name for item in order]}"


def test_the_order_is_one_that_is_allowed() -> None:
    seen: set[str] = set()
    for item in PASSES:
        assert seen.issuperset(item.after.split()), item.name
        seen.add(item.name)
    assert len(seen) == len(PASSES)


def test_what_a_pass_states_is_needed() -> None:
    """Left out, ``after`` of one pass lets a model become something else: fusing a linear layer before its SiLU is one,
    say.
    """
    swapped = [item for item in PASSES if item.name != "fuse_linear"]
    swapped.insert(1, next(item for item in PASSES if item.name == "fuse_linear"))
    assert rewritten("unet", True, tuple(swapped))[0] != rewritten("unet", True)[0]
