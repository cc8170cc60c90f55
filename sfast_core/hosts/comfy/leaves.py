"""ComfyUI's layers cast or load their weights at each call; a trace must name the weight, not record the way there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from ...capture import KeptByHost, Recorder, in_place_of, one_recording
from ...libraries.hooks import keeps_state
from ...reporting.reasons.memory import COMPUTES
from ...weights.kitchen import CODES, operators
from ...weights.part import has_parts, is_memory, is_plain
from .gguf import as_plain, blocks_of_gguf
from .offload import KEPT_BY_HOST, LEFT_TO_HOST, others_function
from .page import PageOrOwn

_POP = "prefetch_queue_pop"  #: newer ComfyUI's, around each block of a model
_LEFT_IN_OPTIONS = frozenset({"activations_shape", "block_index"})  #: by ComfyUI's blocks, for other nodes
_BACKENDS = "comfy_kitchen.backends."
#: comfy-kitchen's functions that are no operators, by the file that calls them: what they launch on a GPU no recorder
#: sees.
_UNSEEN = {
    "comfy_kitchen.tensor.convrot_w4a4": ("convrot_w4a4_linear", "dequantize_convrot_w4a4_weight"),
    "comfy_kitchen.tensor.w4a8_int8": ("w4a8_int8_linear", "dequantize_w4a8_int8_weight"),
}


@contextmanager
def casting_leaves(recorder: Recorder) -> Iterator[None]:
    """While a call is recorded, let ``comfy.ops.cast_bias_weight`` run unrecorded and tell the recorder what it
    returned.

    And let quantised products that comfy-kitchen launches by itself be the operator that they are elsewhere, which can
    be recorded. The functions are put back however the call ends. Other threads pass through them as before. Where this
    ComfyUI has no such functions its layers are recorded like any other.
    """
    import comfy.ops

    recorder.left_to_host = LEFT_TO_HOST
    recorder.kept_by_host = KeptByHost(KEPT_BY_HOST, (*_remembered_by_kitchen(), *_options_of_nobody()))
    recorder.keeps_state = keeps_state  # packs bring models of diffusers'
    with one_recording("ComfyUI").lock, ExitStack() as replaced:
        cast, uncast = getattr(comfy.ops, "cast_bias_weight", None), getattr(comfy.ops, "uncast_bias_weight", None)
        if cast is not None:
            replaced.enter_context(in_place_of(comfy.ops, "cast_bias_weight", partial(_cast, recorder)))
        if cast is not None and uncast is not None:
            replaced.enter_context(in_place_of(comfy.ops, "uncast_bias_weight", partial(_unrecorded, recorder)))
        kitchen = getattr(getattr(comfy, "quant_ops", None), "ck", None)
        if hasattr(kitchen, "int8_linear") and (operator := _int8_linear()) is not None:
            replaced.enter_context(in_place_of(kitchen, "int8_linear", partial(_product, operator)))
        for file, names in _UNSEEN.items():
            for name in names:
                if hasattr(there := sys.modules.get(file), name):
                    replaced.enter_context(in_place_of(there, name, partial(_as_one, recorder)))
        prefetch = sys.modules.get("comfy.model_prefetch")
        if hasattr(prefetch, _POP):
            replaced.enter_context(in_place_of(prefetch, _POP, partial(_popped, recorder)))
        replaced.enter_context(blocks_of_gguf(recorder, _unrecorded))
        yield


def _remembered_by_kitchen() -> tuple[dict[Any, Any], ...]:
    """The tables in which comfy-kitchen keeps what a device can do, and what it hands its kernels again: a process's
    first call fills them. What it keeps in an attribute is asked for now.
    """
    registry = getattr(sys.modules.get("comfy_kitchen.registry"), "registry", None)
    getattr(registry, "_compute_capability", None)
    files = [file for name, file in list(sys.modules.items()) if name.startswith(_BACKENDS)]
    return tuple(
        value
        for file in files
        for name, value in list(vars(file).items())
        if type(value) is dict and name.startswith("_") and not name.startswith("__")
    )


def _options_of_nobody() -> tuple[dict[Any, Any], ...]:
    """The options that the blocks of a ControlNet get, which hands them none: a default, one dict for all calls. The
    blocks leave in it what they leave in a call's options, the last shapes that they had.
    """
    file = sys.modules.get("comfy.ldm.modules.diffusionmodules.openaimodel")
    defaults = getattr(getattr(file, "forward_timestep_embed", None), "__defaults__", None) or ()
    return tuple(value for value in defaults if type(value) is dict and _LEFT_IN_OPTIONS.issuperset(value))


def _popped(recorder: Recorder, pop: Any, queue: Any, *args: Any, **kwargs: Any) -> Any:
    """Record a block of the model, which the host runs inside its own function that prefetches weights.

    Where nothing is prefetched, that function only runs the block, and what else it could read isn't the model's. What
    is prefetched is the host's own business and isn't recorded. A CUDA graph of the host's is turned off: it would hide
    what the block does.
    """
    core = kwargs.get("core", args[3] if len(args) > 3 else None)
    if queue is None:
        return core() if core is not None else None
    if recorder.in_leaf:
        return pop(queue, *args, **kwargs)

    def recorded() -> None:
        with recorder.resumed():
            core()  # type: ignore[misc]

    if core is not None:
        kwargs, args = {**kwargs, "core": recorded}, args[:3]
        kwargs |= {"enable_graph": False} if kwargs.get("enable_graph") else {}
    with recorder.paused():
        return pop(queue, *args, **kwargs)


def _cast(recorder: Recorder, cast: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
    if recorder.in_leaf:
        return cast(module, *args, **kwargs)
    if _has_parts(module):
        return _by_parts(recorder, cast, module, args, kwargs)
    with recorder.paused():  # asking a tensor for its shape is a torch function too
        result = cast(module, *args, **kwargs)
        if any(map(_of_a_class, result[:2])):
            result = (*(as_plain(tensor) for tensor in result[:2]), *result[2:])
        _bind(recorder, module, result)
    return result


def _of_a_class(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and not is_plain(tensor)


def _unrecorded(recorder: Recorder, uncast: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a function that isn't to be recorded: what it returns is bound elsewhere, or nobody reads it."""
    with recorder.paused():
        return uncast(*args, **kwargs)


def _int8_linear() -> Any:
    """comfy-kitchen's operator, where it knows an activation in front; None elsewhere."""
    known = [packet.default for packet in operators("int8_linear") if "input_act" in str(packet.default._schema)]
    return known[0] if known else None


def _product(
    operator: Any,
    original: Any,
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    convrot: bool = False,
    convrot_groupsize: int = 256,
    input_act: str | None = None,
) -> Any:
    """``ck.int8_linear`` by the operator of that name: the function may launch a kernel that no recorder sees."""
    dtype = out_dtype or torch.bfloat16
    code = CODES.get(dtype)
    if code is None or dtype.itemsize == 1:
        return original(x, weight, weight_scale, bias, out_dtype, convrot, convrot_groupsize, input_act)
    return operator(x, weight, weight_scale, bias, code, convrot, convrot_groupsize, input_act)


def _as_one(recorder: Recorder, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Record a function that depends on its arguments alone as one call of the graph."""
    return original(*args, **kwargs) if recorder.in_leaf else recorder.run(original, *args, **kwargs)


def _has_parts(module: Any) -> bool:
    """Whether a layer's weight is quantised, and lies where the layer has it."""
    weight = getattr(module, "weight", None)
    return (
        isinstance(weight, torch.Tensor) and has_parts(weight) and not is_memory(weight) and not hasattr(module, "_v")
    )


def _by_parts(recorder: Recorder, cast: Any, module: Any, args: Any, kwargs: Any) -> Any:
    """Record what is done to a quantised weight as done to its parts. Where the weight has to be brought to the device
    first, these are the parts of what was brought.
    """
    if getattr(module, "weight_function", None) or getattr(module, "bias_function", None):
        recorder.refuse(COMPUTES(kind=type(module).__name__), passing=True)
    device = kwargs.get(
        "device", args[2] if len(args) > 2 else getattr(args[0] if args else kwargs.get("input"), "device", None)
    )
    if device is not None and module.weight.device != device and not recorder.failure:
        with recorder.paused():
            result = cast(module, *args, **kwargs)
            _bind(recorder, module, result)
            return result
    # it asks for attributes by computed names: which of the layer's there are says where its weights are, and no more
    with recorder.unread():
        return cast(module, *args, **kwargs)


def _bind(recorder: Recorder, module: Any, result: Any) -> None:
    """Tell the recorder whose weight and bias ``cast_bias_weight`` has returned."""
    if others_function(module):
        recorder.refuse(COMPUTES(kind=type(module).__name__), passing=True)
    for name, tensor in zip(("weight", "bias"), result[:2], strict=False):
        if tensor is not None:
            recorder.bind_weight(tensor, module, name, PageOrOwn() if hasattr(module, "_v") else None)
