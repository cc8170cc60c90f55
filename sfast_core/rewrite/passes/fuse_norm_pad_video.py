"""What stands between two convolutions of a video becomes one op, which writes what the next convolution reads.

An RMSNorm over the channels, its modulation, SiLU; frames that were kept of what came before, in front; the first frame
again, and again; edges that are replicated or reflected; pixels that are repeated. PyTorch takes a pass for each, and
pads and repeats videos in NCDHW alone. Of a GroupNorm the statistics come first, and what is left is a scale and a
shift of each channel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...ops.group_norm_affine import group_norm_affine
from ...ops.norm_pad_video import norm_pad_video
from ..channel_norms import ChannelNorm, channel_norm_of, vectors
from ..graph import (
    calls,
    calls_of,
    insert,
    insert_as,
    insert_item,
    metas,
    named,
    shape,
    sole_user,
    throughout,
    value,
)
from ..patterns import HasImpl
from ..videos import as_rows, frames_of, has_videos, is_video, padding_of, repeated_frame

_EDGES = frozenset({"replicate", "reflect"})  #: what rows and columns are padded with


@dataclass(frozen=True)
class _Placed:
    """Where a video's pixels go: see :func:`..ops.norm_pad_video.norm_pad_video`."""

    last: Node  #: whose result it is
    times: tuple[int, int, int] = (1, 1, 1)
    pad: tuple[int, ...] = (0,) * 6
    edge: str = "replicate"
    leads: tuple[Node, ...] = ()

    @property
    def offset(self) -> int | None:
        """How many frames come in front of the video's own; None where the video as it is is no part of the result."""
        return (
            sum(shape(lead)[2] for lead in self.leads) + self.pad[0]
            if self.times == (1, 1, 1) and not any(self.pad[2:])
            else None
        )


def fuse_norm_pad_video(graph: Graph, has_impl: HasImpl) -> int:
    """Each norm over a video's channels, and each padding, repetition or join that a convolution reads."""
    if not has_videos(graph):
        return 0
    fused = 0
    for node in list(graph.nodes):
        if node.op in ("call_function", "call_method") and node.args and (norm := channel_norm_of(node)) is not None:
            fused += _fuse(norm, _placed(norm.last), has_impl)
    fused += sum([_fuse_group_norm(node, has_impl) for node in calls_of(graph, F.group_norm)])
    for node in list(graph.nodes):
        main = _main(node) if node.users else None
        if main is not None:
            placed = _placed(main, node)
            fused += placed.last is not main and _fuse(ChannelNorm(main, main), placed, has_impl)
    return fused


def _fuse_group_norm(node: Node, has_impl: HasImpl) -> bool:
    """A video's GroupNorm and SiLU, whose result is moved; one that stays is as cheap by both of these."""
    if value(node).dim() != 5:
        return False
    user = sole_user(node)
    last = user if user is not None and calls(user, F.silu) else node
    placed, call = _placed(last), named(node)
    if placed.last is last:
        return False
    rows = as_rows(call.input, node)
    arguments = (rows, call.num_groups, call.weight, call.bias, call.eps)
    if not has_impl(group_norm_affine, *metas(arguments)):
        return False
    vector = value(rows).new_empty(shape(rows)[:2], dtype=torch.float32)
    both = insert_as(node, (vector, vector), group_norm_affine, *arguments)
    factor, shift = (insert_item(node, both, index) for index in range(2))
    norm = ChannelNorm(last, call.input, factor=factor, shift=shift, act="none" if last is node else "silu")
    return _fuse(norm, placed, has_impl)


def _main(node: Node) -> Node | None:
    """The video that a padding, a repetition, or a join of frames that a convolution reads, has the most frames of."""
    if _is_pad(node) or (calls(node, F.interpolate) and is_video(node)):
        joined = sole_user(node)
        return None if calls(joined, torch.cat) and _first_once(joined) is not None else node.args[0]
    if not calls(node, torch.cat) or not is_video(node) or named(node).dim not in (2, -3):
        return None
    if (doubled := _first_once(node)) is not None:
        return doubled
    parts: Any = named(node).tensors
    if not any(calls(user, F.conv3d) or _is_pad(user) for user in node.users):
        return None
    return parts[-2] if repeated_frame(parts[-1]) is not None and len(parts) > 1 else parts[-1]


def _is_pad(node: Any) -> bool:
    """Whether it pads a video as the op can."""
    pad = padding_of(node)
    return pad is not None and pad.mode in _EDGES and not (pad.mode == "reflect" and any(pad.sizes[:2]))


def _placed(video: Node, first: Node | None = None) -> _Placed:
    """Where a video's pixels go, by way of ``first`` or of who reads it, as far as one op takes them."""
    placed = _Placed(video)
    step = first
    while True:
        if step is None:
            step = _reader(placed.last)
        following = None if step is None else _next(placed, step, video)
        if following is None:
            return placed
        placed, step = following, None


def _reader(video: Node) -> Node | None:
    """Who reads a video, apart from those who take some of its frames."""
    readers = [user for user in video.users if frames_of(user) is None]
    return readers[0] if len(readers) == 1 else None


def _next(placed: _Placed, step: Node, video: Node) -> _Placed | None:
    if placed.last is not video and sole_user(placed.last) is not step:  # others read what lies between
        return None
    fresh = placed.pad == (0,) * 6 and placed.times == (1, 1, 1) and not placed.leads
    if calls(step, F.interpolate) and is_video(step):
        times = _times(step) if fresh else None
        return None if times is None else replace(placed, last=step, times=times)
    if _is_pad(step):
        more, edge, _ = padding_of(step)  # type: ignore[misc]
        if step.args[0] is not placed.last or placed.leads or any(placed.pad[2:]):
            return None
        return replace(
            placed, last=step, pad=tuple(one + other for one, other in zip(placed.pad, more, strict=True)), edge=edge
        )
    if calls(step, torch.cat) and is_video(step) and named(step).dim in (2, -3):
        return _joined(placed, step)
    return None


def _times(node: Node) -> tuple[int, int, int] | None:
    call = named(node)
    if call.mode not in ("nearest", "nearest-exact") or not is_video(call.input):
        return None
    pairs = list(zip(shape(node)[2:], shape(call.input)[2:], strict=True))
    if any(now % then for now, then in pairs):
        return None
    times = tuple(now // then for now, then in pairs)
    factors = call.scale_factor
    if factors is not None and not call.recompute_scale_factor:
        each = factors if isinstance(factors, (tuple, list)) else (factors,) * 3
        if any(float(factor) != time for factor, time in zip(each, times, strict=True)):
            return None
    return times  # type: ignore[return-value]


def _first_once(node: Node) -> Node | None:
    """The video that a join repeats in time and space, but for its first frame, which is repeated in space alone."""
    parts: Any = named(node).tensors
    if len(parts) != 2 or not calls(parts[1], F.interpolate):
        return None
    rest = frames_of(named(parts[1]).input)
    image: Any = parts[0].args[0] if calls(parts[0], torch.reshape) else None
    if rest is None or not calls(image, F.interpolate) or not calls(named(image).input, torch.reshape):
        return None
    first, times = frames_of(named(image).input.args[0]), _times(parts[1])
    if (
        first is None
        or times is None
        or first[0] is not rest[0]
        or first[1:] != (0, 1)
        or rest[1:] != (1, shape(rest[0])[2])
        or times[0] != 2
    ):
        return None
    factors = named(image).scale_factor
    same = (
        named(image).mode == named(parts[1]).mode
        and (factors is None or throughout(factors, times[1]))
        and times[1] == times[2]
    )
    return rest[0] if same and shape(parts[0])[3:] == shape(parts[1])[3:] else None


def _joined(placed: _Placed, step: Node) -> _Placed | None:
    parts: Any = named(step).tensors
    if (doubled := _first_once(step)) is not None:
        fresh = placed.pad == (0,) * 6 and placed.times == (1, 1, 1) and not placed.leads
        times = _times(parts[1])
        return (
            replace(placed, last=step, times=times, pad=(-1, 0, 0, 0, 0, 0))
            if fresh and doubled is placed.last and times is not None
            else None
        )
    if list(parts).count(placed.last) != 1 or any(
        not is_video(part) or value(part).dtype != value(step).dtype for part in parts
    ):
        return None
    at = list(parts).index(placed.last)
    front, back, (before, behind) = 0, 0, (list(parts[:at]), list(parts[at + 1 :]))
    frames = shape(placed.last)[2]
    while (
        before
        and (again := repeated_frame(before[-1])) is not None
        and again[:2] == (placed.last, 0)
        and not placed.leads
    ):
        front, before = front + again[2], before[:-1]
    while behind and (again := repeated_frame(behind[0])) is not None and again[:2] == (placed.last, frames - 1):
        back, behind = back + again[2], behind[1:]
    if behind or (front and before) or ((front or back) and placed.leads):
        return None
    pad = (placed.pad[0] + front, placed.pad[1] + back, *placed.pad[2:])
    return replace(placed, last=step, pad=pad, leads=(*before, *placed.leads))


def _fuse(norm: ChannelNorm, placed: _Placed, has_impl: HasImpl) -> bool:
    """Put the op in the place of all that; other readers take their frames of its result."""
    own = norm.last
    apart = (
        [user for user in own.users if user is not placed.last and not _within(user, placed)]
        if placed.last is not own
        else []
    )
    if apart and (placed.offset is None or norm.x is own):  # of what is there anyway others may go on to read
        placed = placed if norm.x is own else _Placed(own)
        apart = []
    last = placed.last
    at = min([user for user in apart if user < last], default=last)
    if (norm.x is own and last is own) or any(not lead < at for lead in placed.leads):
        return False
    image = value(norm.x).dim() == 4
    x = insert(at, torch.reshape, norm.x, (*shape(norm.x)[:2], 1, *shape(norm.x)[2:])) if image else norm.x
    leads = placed.leads
    lead = None if not leads else leads[0] if len(leads) == 1 else insert(at, torch.cat, list(leads), 2)
    arguments = (x, norm.eps, *vectors(norm, at), norm.act, placed.times, placed.pad, placed.edge, lead)
    if not has_impl(norm_pad_video, *metas(arguments)):
        return False
    val = torch.empty_like(value(last).unsqueeze(2) if image else value(last), memory_format=torch.channels_last_3d)
    new = insert_as(at, val, norm_pad_video, *arguments)
    if apart:
        start, frames = placed.offset or 0, shape(own)[2]
        part = insert(at, torch.narrow, new, 2, start, frames)
        own.replace_all_uses_with(part, delete_user_cb=lambda user: user in apart)
    result = insert_as(last, value(last), torch.reshape, new, shape(last)) if image else new
    last.replace_all_uses_with(result)
    return True


def _within(user: Node, placed: _Placed) -> bool:
    """Whether a reader of a video only leads to what is put in its place."""
    return (
        bool(user.users)
        and all(reader is placed.last or _within(reader, placed) for reader in user.users)
        and (
            frames_of(user) is not None
            or calls(user, F.interpolate, torch.reshape, torch.cat)
            or repeated_frame(user) is not None
            or _is_pad(user)
        )
    )
