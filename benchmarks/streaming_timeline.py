"""``python -m benchmarks.streaming_timeline``: where the time goes while SDXL's UNet streams, worked out without a GPU.

The UNet runs on the meta device at batch 4. Each instruction gets a part of the resident step by its arithmetic and its
bytes, and the schedule of copies is played against these with a bandwidth, a cost of each copy and one of each point
where copies and kernels wait for one another. So it shows what a schedule is bound by, not what a GPU does: those three
numbers are given, not measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from sfast_core.runtime.streaming.batches import Batch, batched
from sfast_core.runtime.streaming.kept import SMALL_BYTES
from sfast_core.runtime.streaming.schedule import Use, plan

from .command import plain_parser

_FLOPS, _BYTES, _LAUNCH = 650e12, 2.5e12, 1.5e-6  # of an H100, roughly: only their ratio matters
_RING = 1 << 30


class _Seen(NamedTuple):
    seconds: float
    reads: tuple[int, ...]


class Recorded(TorchDispatchMode):
    """The instructions that read weights or multiply, each with what it would take, and which weights it reads."""

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.seen: list[_Seen] = []
        self._reads = {id(weight): frozenset({index}) for index, weight in enumerate(weights)}
        self._alive: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        results = [each for each in tree_leaves(out) if isinstance(each, torch.Tensor)]
        reads: frozenset[int] = frozenset().union(*(self._reads.get(id(each), frozenset()) for each in tensors))
        self._alive += results  # or another gets the same id
        if func.is_view or func is torch.ops.aten._unsafe_view.default:
            self._reads |= {id(each): reads for each in results}
            return out
        count = flop_registry.get(func.overloadpacket)
        flops = count(*args, **(kwargs or {}), out_val=out) if count else 0
        if reads or flops:
            moved = sum(each.nbytes for each in (*tensors, *results))
            self.seen.append(_Seen(max(flops / _FLOPS, moved / _BYTES) + _LAUNCH, tuple(sorted(reads))))
        return out


def played(
    batches: Sequence[Batch], sizes: Sequence[int], seconds: Sequence[float], bandwidth: float, copy: float, wait: float
) -> float:
    """How long a call takes.

    Args:
        batches: its copies.
        sizes: bytes, by weight.
        seconds: of each instruction.
        bandwidth: bytes a second.
        copy: seconds that each copy takes besides.
        wait: likewise each point where one side waits for the other, on the side of the copies; half of that on the
            other.
    """
    done, there, copies_at, place = [0.0], dict[int, float](), 0.0, 0
    for index in range(len(seconds) + 1):
        while place < len(batches) and batches[place].after < index:
            batch = batches[place]
            waits = wait if batch.after >= 0 and (place == 0 or batches[place - 1].after != batch.after) else 0.0
            copies_at = (
                max(copies_at, done[batch.after + 1])
                + waits
                + sum(copy + sizes[each.weight] / bandwidth for each in batch.copies)
                + wait
            )
            there[batch.before] = copies_at
            place += 1
        if index < len(seconds):
            now = max(done[-1] + wait / 2, there[index]) if index in there else done[-1]
            done.append(now + seconds[index])
    return done[-1]


def _sdxl() -> tuple[list[int], list[_Seen]]:
    from .full_size import MODELS, build_unet

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float16, device="meta")

    unet = build_unet(MODELS[1].config, torch.device("meta"), torch.float16)
    weights = list(unet.parameters())
    more = {"text_embeds": empty(4, 1280), "time_ids": empty(4, 6)}
    with torch.no_grad(), Recorded(weights) as recorded:
        unet(
            empty(4, 4, 128, 128),
            torch.tensor(500, device="meta"),
            empty(4, 77, 2048),
            return_dict=False,
            added_cond_kwargs=more,
        )
    return [weight.nbytes for weight in weights], recorded.seen


def _away(sizes: Sequence[int], part: int, smallest: bool) -> list[int]:
    """``part`` percent of the bytes: the smallest weights, as ComfyUI leaves them, or evenly."""
    order = sorted(range(len(sizes)), key=lambda index: sizes[index]) if smallest else range(len(sizes))
    chosen, moved, seen, whole = [], 0, 0, sum(sizes)
    for index in order:
        seen += sizes[index]
        if moved + sizes[index] <= (whole if smallest else seen) * part / 100 + sizes[index] / 2:
            chosen.append(index)
            moved += sizes[index]
    return sorted(chosen)


def main() -> None:
    """Print a table."""
    parser = plain_parser("streaming_timeline", __doc__)
    parser.add_argument("--bandwidth", type=float, default=55.2, help="GB a second from pinned memory")
    parser.add_argument("--resident", type=float, default=51.5, help="ms of a step with all weights on the GPU")
    parser.add_argument("--copy", type=float, default=3.0, help="us of each copy besides its bytes")
    parser.add_argument("--wait", type=float, default=15.0, help="us of each point of waiting")
    given = parser.parse_args()
    sizes, seen = _sdxl()
    scale = given.resident / 1e3 / sum(each.seconds for each in seen)
    seconds, bandwidth = [each.seconds * scale for each in seen], given.bandwidth * 1e9
    print(
        "| away | kept MiB | copies | points of waiting | ms, each copy alone | ms, in batches | moving ms |\n"
        + "|---" * 7
        + "|"
    )
    for smallest in (False, True):
        for part in (50, 90):
            away = set(_away(sizes, part, smallest))
            first = {
                index: place for place in reversed(range(len(seen))) for index in seen[place].reads if index in away
            }
            uses = [
                Use(
                    index, sizes[index], tuple((place, place) for place, each in enumerate(seen) if index in each.reads)
                )
                for index in first
            ]
            for room in (0, _RING):
                kept, held = set(), 0
                for use in sorted(uses, key=lambda use: (use.bytes > SMALL_BYTES, first[use.weight])):
                    if held + use.bytes <= room:
                        kept.add(use.weight)
                        held += use.bytes
                schedule = plan([use for use in uses if use.weight not in kept], _RING)
                batches = batched(schedule.copies, dict(enumerate(sizes)), _RING)
                alone = [Batch((copy,), copy.after, copy.before) for copy in schedule.copies]
                times = [
                    played(each, sizes, seconds, bandwidth, given.copy / 1e6, given.wait / 1e6) * 1e3
                    for each in (alone, batches)
                ]
                moving = sum(sizes[index] for index in away) / bandwidth * 1e3
                name = f"{part}%, the smallest" if smallest else f"{part}%"
                print(
                    f"| {name} | {held >> 20} | {len(alone)} | {len(batches)} | {times[0]:.1f} | {times[1]:.1f} |"
                    f" {moving:.1f} |"
                )


if __name__ == "__main__":
    main()
