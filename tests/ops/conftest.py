"""What the tests of several ops share."""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sfast_core.native import load
from sfast_core.native.interface import interface


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which status functions the library was asked for; it has nothing against anything."""
    names: list[str] = []
    monkeypatch.setattr(load, "why_not", lambda device, status_of="sfast_device_status": names.append(status_of))
    return names


@dataclass
class Library:
    """In the place of the CUDA extension: takes arguments of the declared types, as that does, and notes them."""

    status: int = 0  #: what every call returns
    calls: dict[str, dict[str, Any]] = field(default_factory=dict)  #: by function, the last one's by parameter

    def __getattr__(self, name: str) -> Any:
        if name == "sfast_error_name":
            return lambda code: b"cudaErrorNo"
        declared = interface().functions[name]

        def run(*values: Any) -> int:
            self.calls[name] = dict(zip(declared.parameters, values, strict=True))
            return self.status

        return ctypes.CFUNCTYPE(declared.result, *declared.parameters.values())(run)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    """A pretended CUDA extension; tensors may lie on the CPU, and the current stream is 77."""
    pretended = Library()
    monkeypatch.setattr(load, "library", lambda: pretended)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=77))
    return pretended
