"""Which workspaces a kernel gets while a graph is captured, and otherwise."""

from __future__ import annotations

import threading

import torch

from sfast_core.native.workspaces import ALIGNMENT, capturing, workspace

CPU = torch.device("cpu")


def test_kernels_of_a_capture_get_bytes_that_no_other_has() -> None:
    with capturing(CPU) as apart:
        assert apart.span == (0, 0)
        taken = [(workspace(count, CPU).data_ptr(), count) for count in (4, 300, 0, 16, 1 << 14)]
        begin, used = apart.span
    assert all((start - begin) % ALIGNMENT == 0 for start, count in taken if count)
    bytes_taken = [at for start, count in taken for at in range(start, start + count)]
    assert len(bytes_taken) == len({*bytes_taken}) and begin <= min(bytes_taken) and max(bytes_taken) < begin + used


def test_large_ones_and_those_that_find_no_place_are_tensors_of_their_own() -> None:
    with capturing(CPU) as apart:
        assert workspace((1 << 14) + 1, CPU).numel() == (1 << 14) + 1 and apart.span == (0, 0)
        kept = [workspace(1 << 14, CPU) for _ in range(70)]
        begin, used = apart.span
    inside = [begin <= tensor.data_ptr() < begin + used for tensor in kept]
    assert inside == [True] * 64 + [False] * 6 and all(tensor.numel() == 1 << 14 for tensor in kept)


def test_there_are_none_outside_of_a_capture_nor_in_another_thread() -> None:
    with capturing(CPU) as apart:
        thread = threading.Thread(target=lambda: workspace(8, CPU))
        thread.start()
        thread.join()
        assert apart.span == (0, 0)
    workspace(8, CPU)
    assert apart.span == (0, 0)
