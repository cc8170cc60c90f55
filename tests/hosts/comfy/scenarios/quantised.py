"""Checkpoints whose linear layers are quantised: each format runs fused with the host's own picture, also with LoRAs
that come and go.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import comfy.model_management
import comfy.sd
import safetensors.torch
import tiny
import torch
from driver import (
    PACK,
    assert_close,
    assert_differs,
    assert_fused,
    calls,
    fast_compile,
    load,
    of_weights,
    report_of,
    sample,
)
from scenario_tools import LORA_SETS, lora, switch_loras

LOWERING = importlib.import_module(".sfast_core.lowering", PACK.__name__)
INT8, ROTATED, E4M3 = {"how": "int8_tensorwise"}, {"how": "int8_tensorwise", "rotate": 64}, {"how": "float8_e4m3fn"}


@contextmanager
def _with_float8_products() -> Iterator[None]:
    """As on a GPU that has them: the host quantises the inputs of float8 layers, too."""
    asked = comfy.model_management.supports_fp8_compute
    comfy.model_management.supports_fp8_compute = lambda device=None: True
    try:
        yield
    finally:
        comfy.model_management.supports_fp8_compute = asked


def _same(quantised: dict[str, Any], family: str = "sd3", limit: float = 8e-2) -> Any:
    """Plain and fast give the same picture, and the fast one ran fused."""
    if quantised["how"] not in tiny.formats():
        return None
    return _same_of(load(family, quantised=quantised), limit)


def _same_of(model: Any, limit: float = 8e-2) -> Any:
    plain = sample(model)
    fast = fast_compile.apply(model)
    sample(fast)
    before = calls(model)
    assert_close(sample(fast), plain, limit)
    assert_fused(model, before)
    assert not calls(model)["eager"], "not the first call either"
    return model


def scenario_int8() -> None:
    _same(INT8)


def scenario_int8_in_a_unet() -> None:
    _same(INT8, "sd15")


def scenario_int8_rotated() -> None:
    _same(ROTATED)


def scenario_float8() -> None:
    _same(E4M3)
    _same({"how": "float8_e5m2"})


def scenario_float8_products() -> None:
    with _with_float8_products():
        _same(E4M3)
        _same({**E4M3, "input_scale": 1 / 64})


def scenario_full_precision_products() -> None:
    _same({**INT8, "full_precision": True})
    with _with_float8_products():
        _same({**E4M3, "full_precision": True})


def scenario_blocks_with_scales() -> None:
    _same({"how": "nvfp4"})
    _same({"how": "mxfp8"})


def scenario_the_ops_mean_what_the_host_computes() -> None:
    """As where a kernel computes them: here their reference does."""
    found = LOWERING.has_impl
    LOWERING.has_impl = lambda *_: lambda reference, *args: reference.__name__ in ("quantise", "scaled_linear")
    try:
        for quantised in (INT8, ROTATED, {**E4M3, "full_precision": True}):
            _counted(_same(quantised))
        with _with_float8_products():
            _counted(_same(E4M3))
            _counted(_same({**E4M3, "input_scale": 1 / 64}))
    finally:
        LOWERING.has_impl = found


def _counted(model: Any) -> None:
    if model is not None:
        passes = report_of(model).signatures[-1].passes
        assert passes["recover_scaled_linear"] >= 15, passes


def _same_weights(model: Any, twin: Any) -> None:
    """The very bits: numbers and scales."""
    mine, theirs = (patcher.model.diffusion_model.state_dict() for patcher in (model, twin))
    assert mine.keys() == theirs.keys()
    assert all(
        torch.equal(mine[name].view(torch.uint8), theirs[name].view(torch.uint8)) for name in mine if mine[name].dim()
    )


_STEPS = (None, (1.0, 5), (0.4, 5), (1.0, 905), None, (1.0, 5))


def _with_loras(
    quantised: dict[str, Any], steps: Sequence[tuple[float, int] | None] = _STEPS, limit: float = 8e-2
) -> None:
    """The host dequantises, patches and quantises again, with numbers that the seed of a key draws: the same picture,
    without a new trace.
    """
    model, twin = load("sd15", quantised=quantised), load("sd15", quantised=quantised)
    fast = fast_compile.apply(model)
    sample(fast)
    before, seen = calls(model), dict[Any, torch.Tensor]()
    for step in steps:
        mine, theirs = (fast, twin) if step is None else (lora(fast, "sd15", *step), lora(twin, "sd15", *step))
        picture = sample(mine)
        assert_close(picture, sample(theirs), limit)
        _same_weights(model, twin)
        assert step not in seen or torch.equal(seen[step], picture)
        seen[step] = picture
    since = calls(model) - before
    assert since["fused"] and not since["traced"] and not since["eager"], dict(since)
    for step, picture in seen.items():
        if step is not None:
            assert_differs(seen[None], picture)


def scenario_mixed_by_layer() -> None:
    if "int8_tensorwise" in tiny.formats():
        weights = tiny.state_dict("sd3")
        _same_of(of_weights("sd3", tiny.mixed(weights, INT8, E4M3, {}, ROTATED, {**E4M3, "full_precision": True})))
        four = [{"how": how} for how in ("nvfp4", "mxfp8", "convrot_w4a4", "asym_w4a8_int8") if how in tiny.formats()]
        _same_of(of_weights("sd3", tiny.mixed(weights, *four, INT8)), 2e-1)


def scenario_older_keys_of_float8() -> None:
    for full_precision in (False, True):
        _same_of(of_weights("sd3", tiny.in_older_keys(tiny.state_dict("sd3"), full_precision)))


def scenario_float8_without_scales() -> None:
    """Stored so by Load Diffusion Model's weight_dtype, or in the file: cast at each call."""
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        _same_of(load("sd3", options={"dtype": dtype}))
    weights = {
        name: weight.to(torch.float8_e4m3fn) if weight.dim() == 2 else weight
        for name, weight in tiny.state_dict("sd3").items()
    }
    _same_of(of_weights("sd3", weights))


def scenario_four_bits() -> None:
    _same({"how": "convrot_w4a4"}, limit=2e-1)
    _same({"how": "asym_w4a8_int8"})


@contextmanager
def _unseen(file: str, name: str) -> Iterator[None]:
    """As on a GPU: what the library's function computes comes from kernels that PyTorch doesn't dispatch."""
    module = importlib.import_module(file)
    function = getattr(module, name)

    @functools.wraps(function)
    def launches(*args: Any, **kwargs: Any) -> torch.Tensor:
        mode = torch.is_inference_mode_enabled()

        def compute() -> torch.Tensor:
            with torch.inference_mode(mode):
                return function(*args, **kwargs)

        with ThreadPoolExecutor(1) as other:
            computed = other.submit(compute).result().contiguous()
        out = torch.empty(computed.shape, dtype=computed.dtype)
        ctypes.memmove(out.data_ptr(), computed.data_ptr(), computed.nbytes)
        return out

    setattr(module, name, launches)
    try:
        yield
    finally:
        setattr(module, name, function)


def scenario_four_bits_by_kernels_that_are_no_operators() -> None:
    for how, file in (("convrot_w4a4", "convrot_w4a4"), ("asym_w4a8_int8", "w4a8_int8")):
        if how in tiny.formats():
            with _unseen(f"comfy_kitchen.tensor.{file}", f"{file}_linear"):
                model = _same({"how": how}, limit=2e-1)
                assert not calls(model)["eager"] and "runs as it is" not in report_of(model).text(), report_of(
                    model
                ).text()


def scenario_loras_on_int8() -> None:
    if "int8_tensorwise" in tiny.formats():
        _with_loras(INT8)


def scenario_loras_on_rotated_int8() -> None:
    if "int8_tensorwise" in tiny.formats():
        _with_loras(ROTATED)


def scenario_loras_on_float8() -> None:
    if "float8_e4m3fn" in tiny.formats():
        _with_loras(E4M3)


def scenario_loras_that_are_switched_often() -> None:
    """One, several, others, none: never those of the step before."""
    for quantised in (INT8, E4M3):
        if quantised["how"] not in tiny.formats():
            continue
        model, twin = load("sd15", quantised=quantised), load("sd15", quantised=quantised)
        switch_loras(model, twin, [(), *LORA_SETS], 8e-2)


def scenario_a_file_of_int8_with_rotation() -> None:
    """Written to disk as such checkpoints are: what a layer is, under a key beside its weight, or of all layers in the
    file's header.
    """
    if "int8_tensorwise" not in tiny.formats():
        return
    weights = {
        name.removeprefix("model.diffusion_model."): weight
        for name, weight in tiny.quantised(tiny.state_dict("sd3"), **ROTATED).items()
    }
    told = {
        name.removesuffix(".comfy_quant"): json.loads(bytes(value.tolist()))
        for name, value in weights.items()
        if name.endswith(".comfy_quant")
    }
    header = {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": told})}
    plain = {name: weight for name, weight in weights.items() if not name.endswith(".comfy_quant")}
    assert told and all(conf["convrot"] for conf in told.values())
    with tempfile.TemporaryDirectory() as folder:
        for name, tensors, metadata in (("keys", weights, None), ("header", plain, header)):
            path = f"{folder}/{name}.safetensors"
            safetensors.torch.save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path, metadata)
            model = comfy.sd.load_diffusion_model(path)
            assert any(
                type(weight).__name__ == "QuantizedTensor" for weight in model.model.diffusion_model.parameters()
            )
            _same_of(model)
            del model


_FEW = (None, (1.0, 5), None)  # quantising to these takes long on a CPU


def scenario_loras_on_nvfp4() -> None:
    if "nvfp4" in tiny.formats():
        _with_loras({"how": "nvfp4"}, _FEW)


def scenario_loras_on_mxfp8() -> None:
    if "mxfp8" in tiny.formats():
        _with_loras({"how": "mxfp8"}, _FEW)


def scenario_loras_on_four_bits() -> None:
    if "convrot_w4a4" in tiny.formats():
        _with_loras({"how": "convrot_w4a4"}, _FEW, 4e-1)  # inputs of 4 bits: a guidance of 7 makes much of little


def scenario_loras_on_four_bits_with_a_codebook() -> None:
    if "asym_w4a8_int8" in tiny.formats():
        _with_loras({"how": "asym_w4a8_int8"}, _FEW[:2])
