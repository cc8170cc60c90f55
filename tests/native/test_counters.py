"""Which kernels get memory for counters that a captured graph zeroes in front, and that none gets another's."""

from __future__ import annotations

import threading

import pytest
import torch

from sfast_core.native import counters
from sfast_core.native.counters import ALIGNMENT, ALL_BYTES, MOST_BYTES, Counters

CPU = torch.device("cpu")


def test_no_byte_is_handed_out_twice() -> None:
    own = Counters(CPU)
    assert own.span == (0, 0)
    with counters.handed_out(own):
        taken = [counters.take(count, CPU) for count in (4, 30, 16, MOST_BYTES, 8, 4)]
    begin, used = own.span
    assert (
        all(tensor is not None and (tensor.data_ptr() - begin) % ALIGNMENT == 0 for tensor in taken)
        and used % ALIGNMENT == 0
    )
    bytes_taken = [tensor.data_ptr() + i for tensor in taken if tensor is not None for i in range(tensor.numel())]
    assert len(bytes_taken) == len({*bytes_taken}) == 4 + 30 + 16 + MOST_BYTES + 8 + 4
    assert begin <= min(bytes_taken) and max(bytes_taken) < begin + used


def test_there_are_none_when_all_are_taken() -> None:
    own = Counters(CPU)
    count = ALL_BYTES // ALIGNMENT
    taken = [own.take(4) for _ in range(count + 3)]
    assert [tensor is not None for tensor in taken] == [True] * count + [False] * 3
    assert len({tensor.data_ptr() for tensor in taken if tensor is not None}) == count and own.span[1] == ALL_BYTES


def test_a_large_workspace_and_none_at_all_are_no_counters() -> None:
    own = Counters(CPU)
    assert own.take(MOST_BYTES + 1) is None and own.take(0) is None and own.span == (0, 0)


def test_there_are_none_outside_of_a_capture_nor_in_another_thread_nor_for_another_device() -> None:
    own = Counters(CPU)
    seen: list[torch.Tensor | None] = []
    with counters.handed_out(own):
        thread = threading.Thread(target=lambda: seen.append(counters.take(4, CPU)))
        thread.start()
        thread.join()
        seen.append(counters.take(4, torch.device("meta")))
    seen.append(counters.take(4, CPU))
    with counters.handed_out(None):
        seen.append(counters.take(4, CPU))
    with pytest.raises(ValueError, match="a failure"), counters.handed_out(own):
        raise ValueError("a failure")
    seen.append(counters.take(4, CPU))
    assert seen == [None] * 5 and own.span == (0, 0)


def test_without_memory_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*size: int, **kind: object) -> torch.Tensor:
        raise torch.cuda.OutOfMemoryError("full")

    assert counters.allocate(CPU) is not None
    monkeypatch.setattr(torch, "empty", fail)
    assert counters.allocate(CPU) is None
