"""All passes together, each by its name, and the choice of impls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core.ops import all_ops
from sfast_core.ops.add_layer_norm import add_layer_norm
from sfast_core.ops.conv2d_act import conv2d_act
from sfast_core.ops.conv2d_shortcut import conv2d_shortcut
from sfast_core.ops.spec import Impl, Op
from sfast_core.rewrite import has_impl, rewrite, select_impls
from sfast_core.rewrite.pipeline import passes
from sfast_core.runtime.store import WeightStore
from sfast_core.target import Target
from tests.models import Forward, UNet
from tests.tracing import CPU, count, evaluate, linears, trace

PASSES = tuple(passes(lambda weight: True))


def traced(disabled: tuple[str, ...] = (), adopt: bool = True) -> tuple[UNet, Any, dict[str, int]]:
    torch.manual_seed(0)
    net = UNet()
    graph = trace(net, *UNet.inputs()).graph
    return net, graph, rewrite(graph, WeightStore().may_pack if adopt else None, disabled).counts


def check(net: nn.Module, graph: torch.fx.Graph) -> None:
    inputs = UNet.inputs()
    with torch.no_grad():
        torch.testing.assert_close(evaluate(graph, inputs)[0], net(*inputs), rtol=1e-4, atol=1e-5)


def test_what_a_unet_becomes() -> None:
    net, graph, counts = traced()
    check(net, graph)
    named = {
        name: number for name, number in counts.items() if number and name.startswith(("fuse", "pack", "conv", "fold"))
    }
    assert named == {
        "fold_constants": 1,
        "convolution_as_linear": 2,
        "fuse_linear": 4,
        "fuse_group_norm_act": 5,
        "fuse_conv_act": 7,
        "fuse_add_layer_norm": 6,
        "fuse_attention": 4,
        "pack_context": 4,
        "pack_embedding": 2,
        "pack_qkv": 6,
        "convolutions_channels_last": 7,
    }
    assert tuple(counts) == PASSES


def test_with_kernels_for_them_linear_layers_take_the_sums() -> None:
    """Those that no LayerNorm reads: behind the last transformer block and in the residual blocks, from the 3x3
    convolutions to the 1x1 ones.
    """
    torch.manual_seed(0)
    net = UNet()
    graph = trace(net, *UNet.inputs()).graph
    counts = rewrite(graph, WeightStore().may_pack, has_impl=lambda op, *_: op is not conv2d_shortcut).counts
    check(net, graph)
    assert counts["fuse_linear"] == 7 and count(graph, torch.add) == 0
    assert counts["split_concat"] == 1 and len(linears(graph, "residual")) == 4
    alike = [name for name in counts if name.startswith(("fuse", "pack")) and name != "fuse_linear"]
    assert {name: counts[name] for name in alike} == {name: traced()[2][name] for name in alike}
    assert [node.args[1] is None for node in graph.nodes if node.target is add_layer_norm].count(False) == 5
    assert all(node.args[7] is None for node in graph.nodes if node.target is conv2d_act)


def test_optional_ops_are_made_where_a_kernel_computes_them() -> None:
    optional = {op.reference for op in all_ops().values() if op.optional}
    for has in (False, True):
        graph = trace(UNet(), *UNet.inputs()).graph
        rewrite(graph, None, has_impl=lambda op, *_: has)  # noqa: B023
        made = {node.target for node in graph.nodes} & optional
        assert made == ({conv2d_shortcut} if has else set()) and bool(linears(graph, "residual")) == has


def test_with_a_kernel_for_it_a_convolution_takes_its_shortcut() -> None:
    torch.manual_seed(0)
    net = UNet()
    graph = trace(net, *UNet.inputs()).graph
    counts = rewrite(graph, WeightStore().may_pack, has_impl=lambda *_: True).counts
    check(net, graph)
    assert (
        counts["fuse_conv_shortcut"],
        counts["convolution_as_linear"],
        counts["fuse_linear"],
        counts["fuse_conv_act"],
    ) == (2, 0, 5, 5)
    assert counts["split_concat"] == 1


@pytest.mark.parametrize("name", PASSES)
def test_each_pass_can_be_left_out_by_name(name: str) -> None:
    net, graph, counts = traced((name,))
    check(net, graph)
    assert name not in counts and len(counts) == len(PASSES) - 1


def test_all_passes_can_be_left_out() -> None:
    net, graph, counts = traced(PASSES)
    check(net, graph)
    assert counts == {}


def test_without_adoption_every_weight_stays_plain() -> None:
    net, graph, counts = traced(adopt=False)
    check(net, graph)
    assert set(PASSES) - set(counts) == {
        "route_experts",
        "pack_gated",
        "pack_context",
        "pack_embedding",
        "pack_qkv",
        "convolutions_channels_last",
    }
    assert all(node.meta["source"].plain for node in graph.nodes if "source" in node.meta)


def test_an_unknown_name_is_an_error_that_tells_the_known_ones() -> None:
    graph = trace(Forward(lambda net, x: x + 1), torch.ones(2)).graph
    with pytest.raises(ValueError, match="disabled_passes: got fuse_everything, known are canonicalise, .*pack_qkv"):
        rewrite(graph, None, ("fuse_everything", "fuse_linear"))


def test_what_nobody_uses_goes_and_inputs_stay() -> None:
    net = Forward(lambda net, x, y: (net.lin(x), x * 2)[1], lin=nn.Linear(4, 4))
    graph = trace(net, torch.randn(2, 4), torch.randn(3)).graph
    report = rewrite(graph, None)
    assert [node.name for node in graph.nodes if node.op == "placeholder"] == ["input_0", "input_1"]
    assert (report.nodes_before, report.nodes_after) == (6, 4)


# -- impls ---------------------------------------------------------------------------------------------------------


def meaning(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@dataclass(frozen=True)
class Fake(Impl):
    """An impl without a module, which notes what it is asked about."""

    reason: str | None = None
    asked: list[Any] = field(default_factory=list)

    def against(self, target: Any, call: Any) -> str | None:
        self.asked.append(tuple(vars(call).values()))
        return self.reason

    @property
    def launch(self) -> Any:
        return LAUNCHES.setdefault(self.name, lambda x: x * 3)


LAUNCHES: dict[str, Any] = {}


def impl(name: str, reason: str | None = None) -> Fake:
    return Fake(name, reason=reason)


def selected(
    impls: tuple[Any, ...], target: Target, disabled: tuple[str, ...] = (), choose: Any = None
) -> tuple[Any, torch.fx.Graph]:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2, 3, device="meta")
    node = graph.call_function(meaning, (x,))
    graph.output((graph.call_function(meaning, (node,)),))
    node.meta["val"] = x.meta["val"]
    op = Op("double", meaning, impls)
    return select_impls(graph, [op], target, disabled, choose), graph


GPU = Target(torch.device("cuda", 0), "fake", (9, 0))


def test_the_first_impl_that_applies_is_taken() -> None:
    first, second, third = impl("first", "needs more"), impl("second"), impl("third")
    selection, graph = selected((first, second, third), GPU)
    assert selection.chosen == {"double": {"second": 2}} and selection.refused == {
        "double": {"first": "first: needs more"}
    }
    assert count(graph, second.launch) == 2 and first.asked[0][0].is_meta


@pytest.mark.parametrize("pattern", ["double.second", "double.*", "*.second"])
def test_impls_can_be_turned_off(pattern: str) -> None:
    selection, graph = selected((impl("second"),), GPU, (pattern,))
    assert selection.refused == {"double": {"second": "turned off in the settings"}} and count(graph, meaning) == 2


def test_on_a_cpu_the_reference_runs() -> None:
    selection, graph = selected((impl("second"),), Target(CPU))
    assert selection.refused == {"double": {"second": "needs CUDA"}} and count(graph, meaning) == 2
    assert selection.chosen == {"double": {"reference": 2}}


def test_a_chooser_decides_for_all_calls_at_once() -> None:
    first, second = impl("first"), impl("second")
    selection, graph = selected((first, second), GPU, choose=lambda calls: ["second", "reference"])
    assert selection.chosen == {"double": {"second": 1, "reference": 1}}
    assert (count(graph, second.launch), count(graph, meaning), count(graph, first.launch)) == (1, 1, 0)


def test_passes_are_told_what_a_kernel_can_compute() -> None:
    first, second, refused = impl("first", "needs more"), impl("second"), {}
    x = torch.empty(2, 3, device="meta")
    assert has_impl([Op("double", meaning, (first, second))], GPU, (), refused)(meaning, x)
    assert refused == {"double": {"first": "first: needs more"}} and second.asked == [(x,)]
    assert not has_impl([Op("double", meaning, (first, second))], GPU, ("double.second",), refused)(meaning, x)
    assert not has_impl([Op("double", meaning, (second,))], Target(CPU), (), refused)(meaning, x)
    assert refused == {"double": {"first": "first: needs more", "second": "turned off in the settings"}}
