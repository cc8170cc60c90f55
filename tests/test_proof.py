"""A fused program's results are compared with eager's in all that they are: parts, precision, integers, what isn't
finite.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sfast_core.capture import CaptureError
from sfast_core.machine.numerics import Numerics, convolutions_round
from sfast_core.programs import proof
from sfast_core.programs.proof import allowed_distance, distance_to_eager, largest_distance

NAN, INF = math.nan, math.inf


def distance(got: torch.Tensor, expected: torch.Tensor, **more: Any) -> float:
    return distance_to_eager([got], [expected], more.pop("tolerance", None), **more)


def values(*numbers: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype)


SAME = {
    "float32": values(1.0, -2.0),
    "large": values(1e38, 3e38),
    "small": values(1e-40, 2e-40),
    "float64, large": values(1e300, 2e300, dtype=torch.float64),
    "not finite": values(1.0, NAN, INF, -INF),
    "nothing finite": values(NAN, INF),
    "complex": torch.tensor([1 + 2j, 3 - 4j]),
    "complex, not finite": torch.tensor([complex(NAN, 1), complex(2, INF)]),
    "complex128": torch.tensor([1 + 2e300j], dtype=torch.complex128),
    "complex32": torch.tensor([1 + 2j], dtype=torch.complex64).to(torch.complex32),
    "conjugated": torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "negated": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    "int64": values(1, 2**62 + 1, dtype=torch.int64),
    "bool": values(True, False, dtype=torch.bool),
    "float8": values(1.0, 2.0).to(torch.float8_e4m3fn),
    "zeros": torch.zeros(3),
    "empty": torch.empty(0, 3),
    "empty int": torch.empty(0, dtype=torch.int32),
    "a number": torch.tensor(3.0),
}


@pytest.mark.parametrize("kind", SAME)
def test_the_same_is_no_distance_away(kind: str) -> None:
    assert distance(SAME[kind].clone(), SAME[kind]) == 0.0


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (torch.tensor([1 + 2j, 3 - 4j]), torch.tensor([1 - 2j, 3 + 4j])),
        (torch.tensor([1 + 2j]), torch.tensor([1 + 2.1j])),
        (torch.tensor([1 + 2j]).to(torch.complex32), torch.tensor([1 - 2j]).to(torch.complex32)),
        (values(1, 2**62 + 1, dtype=torch.int64), values(1, 2**62, dtype=torch.int64)),
        (values(100_000, 100_001, dtype=torch.int32), values(100_000, 100_000, dtype=torch.int32)),
        (values(True, False, dtype=torch.bool), values(True, True, dtype=torch.bool)),
        (values(1e300, 2e300, dtype=torch.float64), values(1e300, 3e300, dtype=torch.float64)),
        (values(1e-300, 0.0, dtype=torch.float64), values(0.0, 1e-300, dtype=torch.float64)),
        (values(3e38, 1e38), values(1e38, 3e38)),
        (values(1.0, INF), values(1.0, -INF)),
        (values(1.0, INF), values(1.0, NAN)),
        (values(1.0, NAN), values(1.0, 2.0)),
        (values(1.0, 2.0), values(1.0, NAN)),
        (values(NAN, 1.0), values(1.0, NAN)),
        (torch.tensor([complex(1, NAN)]), torch.tensor([complex(NAN, 1)])),
        (values(1.0, 2.0).to(torch.float8_e4m3fn), values(2.0, 1.0).to(torch.float8_e4m3fn)),
        (torch.ones(2), torch.zeros(2)),
    ],
)
def test_what_is_another_is_too_far_away(got: torch.Tensor, expected: torch.Tensor) -> None:
    with pytest.raises(CaptureError, match="from eager's"):
        distance(got, expected)


@pytest.mark.parametrize("got", [torch.ones(2, 1), torch.ones(2, dtype=torch.float64), torch.empty(0)])
def test_another_shape_or_dtype_is_another_result(got: torch.Tensor) -> None:
    with pytest.raises(CaptureError, match="the fused result is"):
        distance(got, torch.ones(2))


@pytest.mark.parametrize(
    ("dtype", "allowed"),
    [
        (torch.float32, 1e-3),
        (torch.float64, 1e-3),
        (torch.complex64, 1e-3),
        (torch.float16, 2e-2),
        (torch.bfloat16, 8e-2),
    ],
)
def test_rounding_is_allowed_and_more_is_not(dtype: torch.dtype, allowed: float) -> None:
    expected = torch.linspace(1, 2, 999).to(dtype)
    assert 0 < distance((expected * (1 + allowed / 2)).to(dtype), expected) < allowed
    with pytest.raises(CaptureError):
        distance((expected * (1 + 2 * allowed)).to(dtype), expected)
    assert distance(expected * 1.5, expected, tolerance=0.6) == pytest.approx(0.5, rel=0.02)


def test_the_largest_distance_is_never_no_number() -> None:
    """Which nothing is larger than: a result that isn't one would be as near as can be."""
    ones, broken = torch.ones(2), torch.tensor([NAN, 1.0])
    assert largest_distance([ones, ones], [ones, ones]) == 0.0 and largest_distance([], []) == 0.0
    assert largest_distance([ones * 1.5, ones], [ones, ones]) == pytest.approx(0.5)
    assert largest_distance([ones, broken], [ones, ones]) == largest_distance([broken, ones * 1.5], [ones, ones]) == INF


@pytest.mark.parametrize(("convolutions", "products"), [(True, False), (False, True), (False, False)])
def test_float32_may_be_as_far_away_as_tf32_rounds(
    monkeypatch: pytest.MonkeyPatch, convolutions: bool, products: bool
) -> None:
    """A VAE in float32 was 1.4e-3 from eager's by TF32 on both sides, and ran eager for that."""
    monkeypatch.setattr(proof, "convolutions_round", lambda: convolutions)
    monkeypatch.setattr(Numerics, "now", lambda: Numerics(tf32=products))
    rounds = convolutions or products
    assert (allowed_distance(torch.float32, torch.device("cuda")) > 5e-3) == rounds
    assert allowed_distance(torch.float32, torch.device("cpu")) == 1e-3
    assert allowed_distance(torch.float64, torch.device("cuda")) == 1e-3
    assert allowed_distance(torch.float16, torch.device("cuda")) == 2e-2


def test_mixed_settings_count_as_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mixed:
        @property
        def allow_tf32(self) -> bool:
            raise RuntimeError("a mix of old and new settings")

    assert convolutions_round() == torch.backends.cudnn.allow_tf32
    monkeypatch.setattr(torch.backends, "cudnn", Mixed())
    assert not convolutions_round()
