"""RMSNorm of queries or keys, the joining of two streams of tokens, and the rotary embedding behind it, in one pass;
each of them alone, too, where attention reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...capture.functional import cast_like
from ...ops.norm_rope import norm_rope
from ..graph import calls, calls_of, insert, insert_as, metas, named, replace_reshaped, shape, sole_user, value
from ..patterns import HasImpl, has_siblings, sdpa
from ..rms_norms import norm_of
from ..rotary import Rotation, rotations

_HEADS_TO_TOKENS = (0, 2, 1, 3)
_HEAD_SIZE = 64  #: in which channels are seen that nobody has seen in heads yet; another would do


class _Stream(NamedTuple):
    """Tokens, and the RMSNorm that is applied to each of their heads; ``eps`` is None where there is none."""

    tokens: Node
    weight: Node | None = None
    eps: float | None = None
    offset: float = 0.0


def fuse_norm_rope(graph: Graph, has_impl: HasImpl) -> int:
    """A rotary embedding with the RMSNorm, or the two RMSNorms and their joining, that nobody else reads; joining
    alone, and a norm alone, where attention reads it: PyTorch's gives each row a block of threads, were it a head of
    64, and copies rows first that are parts of others.

    A rotary embedding that is one kernel already stays where there is no norm in front of it, and joining where both
    parts lie dense: PyTorch takes 18 us for 28 MB then and 92 where they are views of queries, keys and values (H100).
    Without an impl all stays as it is.
    """
    fused = sum(_fuse_rotations(graph, has_impl))
    fused += sum(_fuse_join(node, has_impl) for node in calls_of(graph, torch.cat))
    fused += sum(_fuse_norm(node, has_impl) for node in calls_of(graph, F.rms_norm))
    return fused


def _fuse_rotations(graph: Graph, has_impl: HasImpl) -> Iterator[bool]:
    made: dict[tuple[Node, ...], Node] = {}
    for rotation in rotations(graph):
        streams = _streams(rotation)
        if rotation.is_kernel and streams[0].eps is None:
            continue
        if rotation.factors not in made:
            made[rotation.factors] = rotation.matrices()
        yield _fuse(rotation.last, streams, made[rotation.factors], rotation.heads == 1, has_impl, rotation.halves)


def _streams(rotation: Rotation) -> list[_Stream]:
    """What is rotated, with the norm in front of it: one stream of tokens, or two that are joined."""
    if rotation.norm is not None:
        return [_Stream(rotation.x, *rotation.norm)]
    if len(rotation.x.users) > rotation.readers:
        return [_Stream(rotation.x)]
    if norm := _norm(rotation.x) or _norm_of_all_heads(rotation):
        return [norm]
    return _joined(rotation.x, rotation.tokens) or _turned(rotation) or [_Stream(rotation.x)]


def _turned(rotation: Rotation) -> list[_Stream] | None:
    """The norm of what is seen with its heads elsewhere in front of the rotation, or two that are joined there."""
    x = rotation.x
    if not calls(x, torch.permute) or tuple(named(x).dims) != _HEADS_TO_TOKENS:
        return None
    source: Any = x.args[0]
    if sole_user(source) is not x:
        return None
    norm = _norm(source)
    streams = _joined(source, 3 - rotation.tokens) if norm is None else [norm]
    return streams and [
        stream._replace(tokens=insert(rotation.last, torch.permute, stream.tokens, _HEADS_TO_TOKENS))
        for stream in streams
    ]


def _norm_of_all_heads(rotation: Rotation) -> _Stream | None:
    """What an RMSNorm over all heads of a token is given, seen in heads as the rotation sees it."""
    x, readers = rotation.x, rotation.readers
    turned = calls(x, torch.permute) and tuple(named(x).dims) == _HEADS_TO_TOKENS
    seen: Any = x.args[0] if turned else x
    if turned != (rotation.heads == 1) or not isinstance(seen, Node) or len(seen.users) > (1 if turned else readers):
        return None
    norm = _wide(seen)
    if norm is None or not turned:
        return norm
    return norm._replace(tokens=insert(rotation.last, torch.permute, norm.tokens, _HEADS_TO_TOKENS))


def _wide(seen: Any) -> _Stream | None:
    """What an RMSNorm over all heads of a token is given, seen in heads as ``seen`` sees its result."""
    if not calls(seen, torch.reshape) or value(seen).dim() != 4:
        return None
    whole: Any = seen.args[0]
    norm = _norm(whole) if sole_user(whole) is seen else None
    if norm is None or norm.weight is None or value(norm.tokens).dim() != 3:
        return None
    images, length, heads, size = shape(seen)
    if shape(norm.tokens)[:2] != (images, length) or shape(norm.weight) != (heads * size,):
        return None
    return norm._replace(tokens=insert(seen, torch.reshape, norm.tokens, shape(seen)))


def _joined(node: Node, dim: int) -> list[_Stream] | None:
    """The two streams that ``node`` joins along ``dim`` behind norms alike."""
    if not calls(node, torch.cat):
        return None
    call = named(node)
    if call.dim % 4 != dim or len(call.tensors) != 2 or any(sole_user(part) is not node for part in call.tensors):
        return None
    first, second = (_norm(part) or _wide(part) for part in call.tensors)
    if first is None or second is None or first[2:] != second[2:]:
        return None
    return [first, second] if _length(first) == _length(second) else None


def _length(stream: _Stream) -> int | None:
    """Over how many channels its norm is."""
    return None if stream.weight is None else shape(stream.weight)[0]


def _joined_rows(node: Node) -> list[_Stream] | None:
    """The two streams [B, L, H, D] that ``node`` joins, each seen as [B, L, C] behind norms alike of its heads, as
    ComfyUI's SD3.5 joins them.
    """
    parts: Any = named(node).tensors
    heads = [part.args[0] if calls(part, torch.reshape) and sole_user(part) is node else None for part in parts]
    if not all(
        head is not None and value(head).dim() == 4 and shape(head)[:2] == shape(part)[:2]
        for head, part in zip(heads, parts, strict=True)
    ):
        return None
    first, second = (_norm(head) if sole_user(head) is part else None for head, part in zip(heads, parts, strict=True))
    return [first, second] if first is not None and second is not None and first[2:] == second[2:] else None


def _fuse_join(node: Node, has_impl: HasImpl) -> bool:
    """Two streams that attention reads: [B, H, L, D] or [B, L, H, D], or [B, L,
    C] that nobody has seen in heads yet.
    """
    parts, dim = named(node).tensors, named(node).dim
    dim = dim % value(node).dim() if isinstance(dim, int) else 0
    if (value(node).dim(), dim) not in {(3, 1), (4, 1), (4, 2)} or len(parts) != 2 or not _only_attention_reads(node):
        return False
    streams = _joined(node, dim) if value(node).dim() == 4 else _joined_rows(node)
    if streams is None:
        if not any(map(_is_view, parts)) or any(value(part).dtype != value(node).dtype for part in parts):
            return False
        streams = [_Stream(part) for part in parts]
    if value(node).dim() == 3 and value(streams[0].tokens).dim() == 3:
        if shape(node)[-1] % _HEAD_SIZE:
            return False
        seen = [
            insert(node, torch.reshape, stream.tokens, (*shape(stream.tokens)[:2], -1, _HEAD_SIZE))
            for stream in streams
        ]
        streams = [stream._replace(tokens=tokens) for stream, tokens in zip(streams, seen, strict=True)]
    return _fuse(node, streams, None, dim == 2, has_impl)


def _fuse_norm(rms: Node, has_impl: HasImpl) -> bool:
    """Queries or keys that attention reads: [B, L, H, D] or [B, H, L, D] with a norm of each head, or [B, L, C] with
    one of all heads, which are seen in heads behind it.
    """
    user = sole_user(rms)
    last = user if calls(user, cast_like) else rms
    norm = _norm(last)
    if norm is None or value(norm.tokens).dtype != value(last).dtype or not _only_attention_reads(last):
        return False
    if value(last).dim() == 4:
        return _fuse(last, [norm], None, any(calls(user, sdpa) for user in last.users), has_impl)
    seen = sole_user(last)
    wide = _wide(seen)
    return wide is not None and _fuse(seen, [wide], None, False, has_impl)


def _is_view(node: Node) -> bool:
    """Whether it isn't dense, or won't be: layers that read one input are to be one, whose result the others' results
    are views of.
    """
    if not value(node).is_contiguous():
        return True
    while calls(node, torch.reshape, torch.permute):
        node = node.args[0]
    return calls(node, F.linear) and has_siblings(node)


def _only_attention_reads(node: Node) -> bool:
    return bool(node.users) and all(
        calls(user, sdpa) or (calls(user, torch.permute, torch.reshape) and _only_attention_reads(user))
        for user in node.users
    )


def _fuse(
    last: Node,
    streams: list[_Stream],
    matrices: Node | None,
    heads_first: bool,
    has_impl: HasImpl,
    halves: bool = False,
) -> bool:
    """Put one call in the place of ``last``."""
    tokens = [
        insert(last, torch.permute, stream.tokens, _HEADS_TO_TOKENS) if heads_first else stream.tokens
        for stream in streams
    ]
    second = (tokens[1], streams[1].weight) if len(streams) > 1 else (None, None)
    arguments: tuple[Any, ...] = (
        tokens[0],
        streams[0].weight,
        matrices,
        streams[0].eps,
        *second,
        halves,
        streams[0].offset,
    )
    while len(arguments) > (6 if len(streams) > 1 else 4) and not arguments[-1]:
        arguments = arguments[:-1]
    if not has_impl(norm_rope, *metas(arguments)):
        return False
    images, length, *heads = shape(tokens[0])
    joined = length + sum(shape(behind)[1] for behind in tokens[1:])
    new = insert_as(last, value(tokens[0]).new_empty((images, joined, *heads)), norm_rope, *arguments)
    if heads_first:
        new = insert(last, torch.permute, new, _HEADS_TO_TOKENS)
    replace_reshaped(last, new, last)
    return True


def _norm(node: Any) -> _Stream | None:
    """What an RMSNorm over the last dimension is given, perhaps computed in float32 between two casts."""
    rms = node.args[0] if calls(node, cast_like) else node
    found = norm_of(rms) if calls(rms, F.rms_norm) else None
    return _Stream(found.x, found.weight, found.eps, found.offset) if found is not None and found.node is node else None
