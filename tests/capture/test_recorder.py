"""A recorded call, replayed on new values: what the graph holds,
and what is refused because it would not be the same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.capture import Untraceable
from tests.models import Attention, Forward, TransformerBlock, UNet
from tests.tracing import check_recording, try_record

Function = Callable[[Any, torch.Tensor], Any]


def module(function: Function) -> Forward:
    """``function`` with a Linear, a BatchNorm (buffers), a Dropout and a ReLU in place at hand."""
    torch.manual_seed(0)
    net = Forward(
        function, lin=nn.Linear(8, 8), norm=nn.BatchNorm1d(8), drop=nn.Dropout(0.5), relu=nn.ReLU(inplace=True)
    )
    net.register_buffer("table", torch.randn(4, 8))
    net.scale = torch.randn(8)  # a plain attribute
    net.register_parameter("gain", nn.Parameter(torch.randn(8)))
    return net


def in_place_view(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = net.lin(x)
    y[:, :2] += x[:, :2]
    return y * 2


def filled_piece_by_piece(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(2, *x.shape)
    y[0] = net.lin(x)
    y[1] = x
    return y.sum(0)


def written_view_of_a_dead_base(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = net.lin(x).view(-1)
    y.mul_(3)
    return y.add_(1).reshape(x.shape)


def in_a_range(net: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.profiler.record_function("layer"):
        return net.lin(x)


def overwritten(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x, dtype=torch.float64)
    y.copy_(net.lin(x)[:1])
    z = torch.empty(3, 8).fill_(2.5)
    return y.sum() + z.sum() + torch.ones(2).zero_().sum()


def several_results(net: Any, x: torch.Tensor) -> torch.Tensor:
    low, high = net.lin(x).chunk(2, dim=-1)
    top = torch.topk(high, 2)
    mean, variance = torch.var_mean(low, dim=-1)
    return low * mean[:, None] + variance[:, None] + top.values.sum() + torch.max(high, dim=-1)[0][:, None]


def live_view(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = net.lin(x)
    y[:, :2].add_(1)
    return y


def live_base(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = net.lin(x)
    view = y[:, :2]
    y.add_(1)
    return view


def moved_to_where_it_is(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.lin.to(x.device)
    return net.lin(x)


RECORDED: dict[str, Function] = {
    "a layer moved to where it is": moved_to_where_it_is,
    "a view in place while its base lives": live_view,
    "a base in place while its view lives": live_base,
    "in place piece by piece": lambda net, x: pieces(net, x),
    "views of views in place": lambda net, x: views_of_views(net, x),
    "views that have nothing in common": lambda net, x: apart_from_one_another(net, x),
    "views set and updated": lambda net, x: set_and_updated(net, x),
    "through a squeezed view": lambda net, x: through_a_squeezed(net, x),
    "out=": lambda net, x: torch.add(x, 1, out=net.lin(x)) * 2,
    "out= what is read": lambda net, x: torch.mul(y := net.lin(x), y, out=y) + y,
    "out= a view": lambda net, x: torch.add((y := net.lin(x))[:, 2:], 1, out=y[:, 2:])[0, 0] + y,
    "out= in another dtype": lambda net, x: torch.add(x, 1, out=net.lin(x).double()) * 2,
    "compared with text": lambda net, x: net.lin(x) if x != "none" else x,
    "Python's types for dtypes": lambda net, x: x * torch.tensor([1, 2], dtype=int).sum() + x.to(float).float(),
    "put at places": lambda net, x: net.lin(x).index_copy_(1, torch.tensor([2, 0]), x[:, :2]).masked_fill_(x > 1, 0),
    "buffer": lambda net, x: net.norm(x) + net.table,
    "plain attribute": lambda net, x: x * net.scale,
    "parameter": lambda net, x: net.gain * x,
    "add_": lambda net, x: net.lin(x).add_(x),
    "mul_ in another dtype": lambda net, x: net.lin(x).mul_(x.double()),
    "augmented": lambda net, x: _augmented(net.lin(x), x),
    "integers in place": lambda net, x: _integers(x),
    "x[i] += y": in_place_view,
    "x[i] = y": filled_piece_by_piece,
    "masked x[i] = 0": lambda net, x: _masked(net.lin(x)),
    "view in place, base dead": written_view_of_a_dead_base,
    "copy_, fill_, zero_": overwritten,
    "ReLU(inplace=True)": lambda net, x: net.relu(net.lin(x)) + 1,
    "silu(inplace=True)": lambda net, x: F.silu(net.lin(x), inplace=True),
    "leaky_relu in place": lambda net, x: F.leaky_relu(net.lin(x), 0.2, True),
    "dropout in eval": lambda net, x: net.drop(net.lin(x)),
    "iterated": lambda net, x: sum(row * i for i, row in enumerate(net.lin(x))),
    "unpacked": lambda net, x: (lambda a, b, c, d: a * b - c * d)(*net.lin(x)),
    "several results": several_results,
    "split sizes": lambda net, x: torch.cat(net.lin(x).split([3, 5], dim=-1)[::-1], dim=-1),
    "numpy scalars": lambda net, x: x * np.float32(0.1) + np.float64(0.5) - net.lin(x) * np.int64(3),
    "scalars on the left": lambda net, x: 2 - 3 / (1 + 2 * x.abs()),
    "metadata": lambda net, x: x.reshape(x.shape[0], -1)[: len(x)] * x.dim() * x.size(1) * x.stride(0) + x.numel(),
    "constants": lambda net, x: x + torch.tensor([1.0, 2.0]).sum() + torch.arange(8, device=x.device).to(x),
    "attributes of a tensor": lambda net, x: x.T.mT.T @ torch.ones(4, 1, dtype=x.dtype, device=x.device),
    "einsum": lambda net, x: torch.einsum("ij,kj->ik", x, net.lin(x)),
    "tuple index": lambda net, x: x[..., None][:, 1:3, 0][torch.tensor([0, 1])],
    "two results and None": lambda net, x: {"a": [net.lin(x), None], "b": (x + 1, 3, "word")},
    "an input and a weight as they are": lambda net, x: (x, net.gain),
    "deep copies": lambda net, x: copy.deepcopy(net.lin(x)) + copy.deepcopy([x.T, x])[0].T,
    "where": lambda net, x: torch.where(x > 0, net.lin(x), x),
    "a profiler's range": in_a_range,
    "keyword input": lambda net, x: F.silu(input=torch.reshape(input=net.lin(x), shape=(8, 4))),
}


def _augmented(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y += x
    y -= 1
    y *= x
    y /= 3
    y **= 2
    y %= 5
    return y


def _integers(x: torch.Tensor) -> torch.Tensor:
    y = (x * 100).long()
    y <<= 2
    y >>= 1
    y ^= 5
    y |= 8
    y &= 127
    y //= 3
    return y


def _masked(y: torch.Tensor) -> torch.Tensor:
    y[y > 0] = 0
    return y


@pytest.mark.parametrize("name", RECORDED)
def test_a_graph_computes_the_module_on_new_values(name: str) -> None:
    check_recording(module(RECORDED[name]), torch.randn(4, 8))


def counted(net: Any, x: torch.Tensor) -> torch.Tensor:
    """Whose numbers of rows follow from nothing but x's shape."""
    owners = torch.zeros(x.shape[0], dtype=torch.long)
    most = torch.bincount(owners, minlength=2).max().item()
    chosen = torch.arange(8)[torch.arange(8) % 2 == 0]
    return net.lin(x)[:, chosen] * most + (2 if owners.any() else 3)


def cut(net: Any, x: torch.Tensor) -> torch.Tensor:
    """By tensors of lengths that the code makes of x's shape, as a transformer does that packs several pictures."""
    lengths = torch.as_tensor([[3], [x.shape[0] - 3]]).prod(-1)
    first, *rest = net.lin(x).split(lengths.tolist())
    owners = torch.arange(2).repeat_interleave(lengths)
    scales = torch.repeat_interleave(x[:2], lengths, dim=0)
    return torch.cat([first * 2, *rest])[owners == 1] + scales[lengths[0] :] * x[torch.arange(x.shape[0]) % 4 != 3][:1]


@pytest.mark.parametrize("function", [counted, cut])
def test_what_follows_from_nothing_is_read(function: Any) -> None:
    check_recording(module(function), torch.randn(4, 8))


def test_whole_blocks() -> None:
    torch.manual_seed(0)
    check_recording(Attention(16), torch.randn(2, 5, 16))
    check_recording(TransformerBlock(16, 12).eval(), torch.randn(2, 5, 16), torch.randn(2, 3, 12))
    check_recording(UNet(), *UNet.inputs())
    check_recording(nn.MultiheadAttention(16, 2, batch_first=True).eval(), *torch.randn(3, 2, 5, 16))


def pieces(net: Any, x: torch.Tensor) -> torch.Tensor:
    """As models save memory: tokens are changed a range at a time, and read as a whole."""
    y = net.lin(x)
    for begin, end in ((0, 1), (1, 3), (3, 4)):
        y[begin:end].mul_(1.0 + x[begin:end]).add_(begin)
    y[1:3].addcmul_(x[1:3], x[0])
    return y


def views_of_views(net: Any, x: torch.Tensor) -> Any:
    """Rows of a turned tensor, a flat view of some, every other element; one after another, read in between."""
    y = net.lin(x)
    turned, middle = y.t(), y[1:3]
    turned[2].add_(1)
    flat = middle.view(-1)
    flat.mul_(2)
    flat[::3] = 0
    first, second = y.view(4, 2, 4).unbind(1)
    second.sub_(middle.sum())
    return y, turned, middle, flat, first, second


def apart_from_one_another(net: Any, x: torch.Tensor) -> Any:
    low, high = net.lin(x).chunk(2, dim=-1)
    low.mul_(2)
    return high + low


def set_and_updated(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = net.lin(x)
    row = y[2]
    y[1:] *= 2
    row += 1
    y[:, 0] -= row[0]
    return y * row


def through_a_squeezed(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = net.lin(x)[:, None]
    y.squeeze(1).clamp_(min=0)
    y[..., 3:5].relu_()
    return y.permute(2, 1, 0)


def reinterpreted(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = net.lin(x)
    y.view(torch.int32).bitwise_and_(-16)
    return y


def stateful(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.table.add_(1)
    return x + net.table


KEPT: dict[str, torch.Tensor] = {}
REFUSED: dict[str, tuple[Function, str]] = {
    "item": (lambda net, x: x * x.sum().item(), "item reads a tensor's value"),
    "float": (lambda net, x: x * float(x[0, 0]), "reads a tensor's value"),
    "bool": (lambda net, x: x if net.lin(x).sum() > 0 else -x, "__bool__ reads a tensor's value"),
    "in": (lambda net, x: x + (5.0 in net.lin(x)), "reads a tensor's value"),
    "tolist": (lambda net, x: x + x.tolist()[0][0], "tolist reads a tensor's value"),
    "numpy": (lambda net, x: x + torch.from_numpy(net.lin(x).detach().numpy()), "reads a tensor's value"),
    "allclose": (lambda net, x: x * torch.allclose(x, net.lin(x)), "allclose reads a tensor's value"),
    "print": (lambda net, x: x + len(str(x)), "reads a tensor's value"),
    "a count of inputs among constants": (
        lambda net, x: x * torch.bincount(torch.zeros(4, dtype=torch.long) + (x[:, 0] > 9)).max().item(),
        "bincount returns a tensor whose shape depends",
    ),
    "a slice up to an input among constants": (
        lambda net, x: x[: torch.arange(3)[2] + (x[0, 0] > 9)],
        "__getitem__ returns a tensor whose shape depends",
    ),
    "rows of an input's by another": (
        lambda net, x: net.lin(x)[x[:, 0] > 0],
        "__getitem__ returns a tensor whose shape depends",
    ),
    "repeats by an input": (
        lambda net, x: torch.repeat_interleave(torch.zeros(4), (x[:, 0] > 9).int()),
        "repeat_interleave returns a tensor whose shape depends",
    ),
    "where a constant lies": (
        lambda net, x: x * (torch.zeros(8).data_ptr() % 2),
        "data_ptr reads a tensor's value",
    ),
    "data_ptr": (lambda net, x: x * (x.data_ptr() % 2), "data_ptr reads a tensor's value"),
    "random numbers": (lambda net, x: x + torch.rand(8), "it draws random numbers"),
    "dropout in training": (lambda net, x: F.dropout(net.lin(x), 0.5, training=True), "it draws random numbers"),
    "an own generator": (lambda net, x: x + torch.rand(8, generator=torch.Generator()), "was given a Generator"),
    "out= a buffer": (
        lambda net, x: torch.add(net.lin(x), 1, out=net.table),
        "add writes to an input or a weight by out=",
    ),
    "several out=": (
        lambda net, x: torch.max(x, 1, out=(torch.empty(4), torch.empty(4, dtype=torch.long)))[0],
        "max writes to several tensors by out=",
    ),
    "a write to an array": (
        lambda net, x: x + torch.from_numpy(np.ones(8, np.float32)).add_(1),
        "writes to an input or a weight",
    ),
    "empty that nobody fills": (lambda net, x: x + torch.empty(8), "a kernel that torch doesn't dispatch"),
    "new_empty that nobody fills": (lambda net, x: x.new_empty(4, 8), "a kernel that torch doesn't dispatch"),
    "a buffer in place": (stateful, "add_ writes to an input or a weight"),
    "a view in place in other numbers": (reinterpreted, "a tensor whose view was changed in place"),
    "data set to another's": (
        lambda net, x: setattr(net.lin.weight, "data", net.lin.weight.data * 1.0) or net.lin(x),
        "reads a tensor's value",
    ),
    "a strided write": (lambda net, x: net.lin(x).t_(), "t_ changes a tensor in place in a way"),
    "boolean index": (lambda net, x: x[x > 0].shape[0] + x, "__getitem__ returns a tensor whose shape depends"),
    "boolean index in a tuple": (
        lambda net, x: x[:, x[0] > 0].shape[1] + x,
        "__getitem__ returns a tensor whose shape depends",
    ),
    "slice by value": (
        lambda net, x: x[: (x > 9).sum()].shape[0] + x,
        "__getitem__ returns a tensor whose shape depends",
    ),
    "nonzero": (lambda net, x: x + len(torch.nonzero(x > 0)), "nonzero returns a tensor whose shape depends"),
    "where of one": (lambda net, x: x + len(torch.where(x > 0)[0]), "where returns a tensor whose shape depends"),
    "masked_select": (
        lambda net, x: x + len(x.masked_select(x > 0)),
        "masked_select returns a tensor whose shape depends",
    ),
    "unique": (lambda net, x: x + len(x.round().unique()), "unique returns a tensor whose shape depends"),
    "repeats by value": (
        lambda net, x: x + len(torch.repeat_interleave(x, (x[:, 0] > 0).long(), dim=0)),
        "repeat_interleave returns a tensor",
    ),
    "size by value": (lambda net, x: x + len(torch.zeros((x > 0).sum())), "zeros returns a tensor whose shape depends"),
    "range by value": (
        lambda net, x: x + len(torch.arange(end=(x > 0).sum())),
        "arange returns a tensor whose shape depends",
    ),
    "memory order": (
        lambda net, x: net.lin(x).t().contiguous().as_strided((4, 8), (8, 1)),
        "depends on how a tensor lies in memory",
    ),
    "no tensor returned": (lambda net, x: len(net.lin(x)), "the result holds no tensor"),
    "an unknown object returned": (lambda net, x: (net.lin(x), object()), "the result holds a object"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_trace_would_burn_in_is_refused_and_the_call_is_the_modules_own(name: str) -> None:
    function, words = REFUSED[name]
    net = module(function)
    net._array = np.ones((4, 8), np.float32)
    x = torch.randn(4, 8)
    random, state = torch.get_rng_state(), {key: value.clone() for key, value in net.state_dict().items()}
    with torch.no_grad():
        expected = net(x.clone())
    after = torch.get_rng_state()
    torch.set_rng_state(random)
    net.load_state_dict(state)
    result, found = try_record(net, x.clone())
    assert isinstance(found, Untraceable) and words in found.reason and not found.passing
    assert torch.equal(torch.get_rng_state(), after)
    if "empty" not in name and "object" not in name:
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
