"""What Triton kernels quantise: rows of up to three tensors as they lie, with what is done to them in front."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from ..triton_operand import dtype_of


class Rows(NamedTuple):
    """A tensor [..., K] as [rows / inner, inner, K] without a copy, and the distances between these."""

    tensor: torch.Tensor
    outer_stride: int
    inner_stride: int


class Source(NamedTuple):
    """x, times and front as rows; x stands where there is no other.

    ``inner`` is 1 where rows are equally far apart in each.
    """

    x: Rows
    times: Rows
    front: Rows
    inner: int
    front_width: int  #: 0 without one

    @property
    def pointers(self) -> tuple[Any, ...]:
        """What a kernel takes first."""
        return self.x.tensor, self.times.tensor, self.front.tensor

    @property
    def places(self) -> tuple[int, ...]:
        """What a kernel takes behind K, as :func:`load_source` has them."""
        return (self.front_width, self.inner, *self.x[1:], *self.times[1:], *self.front[1:])


def source_of(x: torch.Tensor, times: torch.Tensor | None, front: torch.Tensor | None) -> Source:
    """The tensors of ``quantise``. A tensor whose rows aren't dense or lie in more than two steps is copied."""
    given = [tensor for tensor in (x, times, front) if tensor is not None]
    inner = 1 if all(map(_in_one_step, given)) else x.shape[-2]
    rows = _rows(x, inner)
    width = 0 if front is None else front.shape[-1]
    return Source(
        rows,
        rows if times is None else _rows(times, inner),
        rows if front is None else _rows(front, inner),
        inner,
        width,
    )


def source_constants(
    source: Source, x: torch.Tensor, act: str | None, times: torch.Tensor | None, front: torch.Tensor | None
) -> dict[str, Any]:
    """What a kernel is compiled for."""
    return {
        "ACT": act or "",
        "TIMES": times is not None,
        "FRONT": front is not None,
        "STEPS": 1 if source.inner == 1 else 2,
        "BY_HAND": x.device.type == "cpu",
        "NARROW": dtype_of(x),
    }


def _in_one_step(x: torch.Tensor) -> bool:
    try:
        x.view(-1, x.shape[-1])
    except RuntimeError:
        return False
    return True


def _rows(x: torch.Tensor, inner: int) -> Rows:
    rows = x.reshape(-1, inner, x.shape[-1])
    rows = rows if rows.stride(-1) == 1 or rows.shape[-1] == 1 else rows.contiguous()
    return Rows(rows, rows.stride(0), rows.stride(1))


@triton.jit
def load_source(
    x, times, front, r, c, live, front_width, inner,
    x_outer, x_inner, times_outer, times_inner, front_outer, front_inner,
    ACT: tl.constexpr, TIMES: tl.constexpr, FRONT: tl.constexpr, STEPS: tl.constexpr, NARROW: tl.constexpr,
    BY_HAND: tl.constexpr,
):  # fmt: skip
    """Values at rows r and columns c in float32, rounded to NARROW where the reference rounds; 0 where not live.

    TIMES and FRONT: whether there are such tensors. STEPS: 2 where rows lie in two steps, of ``inner`` rows each.
    BY_HAND: in Triton's interpreter.
    """
    if STEPS == 2:
        far, near = r // inner, r % inner
        x += far * x_outer + near * x_inner
        times += far * times_outer + near * times_inner
        front += far * front_outer + near * front_inner
    else:
        x += r * x_outer
        times += r * times_outer
        front += r * front_outer
    own = live
    if FRONT:
        own = live & (c >= front_width)
        v = tl.load(x + (c - front_width), mask=own, other=0.0).to(tl.float32)
    else:
        v = tl.load(x + c, mask=own, other=0.0).to(tl.float32)
    v = _act(v, ACT)
    if ACT != "":
        v = _narrowed(v, NARROW, BY_HAND)
    if TIMES:
        if FRONT:
            other = tl.load(times + (c - front_width), mask=own, other=0.0)
        else:
            other = tl.load(times + c, mask=own, other=0.0)
        v = _narrowed(v * other.to(tl.float32), NARROW, BY_HAND)
    if FRONT:
        v = tl.where(c < front_width, tl.load(front + c, mask=live & (c < front_width), other=0.0).to(tl.float32), v)
    return v


@triton.jit
def _narrowed(v, NARROW: tl.constexpr, BY_HAND: tl.constexpr):
    """float32 rounded to NARROW, ties to even. BY_HAND: Triton's interpreter cuts bfloat16 off."""
    if BY_HAND and NARROW == tl.bfloat16:
        bits = v.to(tl.int32, bitcast=True)
        bits += 32767 + ((bits >> 16) & 1)
        v = ((bits >> 16) << 16).to(tl.float32, bitcast=True)
    return v.to(NARROW).to(tl.float32)


@triton.jit
def _act(v, ACT: tl.constexpr):
    """An activation in float32, to a few of its last bits, of which those of NARROW keep none; by the GPU's own
    exponential and quotient: as PyTorch writes it, with a ``tanh`` and an exact quotient, it took more time than its
    bytes.
    """
    if ACT == "silu":
        v = v / (1.0 + tl.exp(-v))
    elif ACT == "gelu":
        v = v * 0.5 * (1.0 + tl.math.erf(v * 0.7071067811865476))
    elif ACT == "gelu_tanh":  # half of 1 + tanh(x) is 1 / (1 + exp(-2 x))
        v = v / (1.0 + tl.exp(-1.5957691216057308 * (v + 0.044715 * v * v * v)))
    elif ACT == "sigmoid":
        v = 1.0 / (1.0 + tl.exp(-v))
    return v
