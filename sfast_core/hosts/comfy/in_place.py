"""A LoRA that is changed, removed or put back in the weights where they lie: nothing moves, and no graph is captured
again.

When the patches of a model change, ComfyUI takes the whole model off the GPU, loads it again and makes a new parameter
of each weight that is patched. Here only the weights whose patches differ are written, into the parameters that are
there. The values are the host's to the bit: its own ``patch_weight_to_device`` computes each from the weight that it
would have started from.

Where that can't be (a part of the model is offloaded, others hold one of its weights, something else than patches
differs, something fails) the host's own loading does it all, as ever.
"""

from __future__ import annotations

import functools
import logging
import operator
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ...weights.memory import holders, is_shared, nobody_else
from ...weights.part import alike, has_parts, parts_of

log = logging.getLogger("fast_compile")
#: What of a patcher this relies on. A class that has its own (GGUF, dynamic VRAM) keeps weights in ways of its own.
_HOST_OWN = (
    "_load_list",
    "load",
    "partially_load",
    "patch_model",
    "patch_weight_to_device",
    "unpatch_hooks",
    "unpatch_model",
)


def with_patches_in_place(patcher: Any) -> Any:
    """Let this patcher, and all clones of it, change patches in place where they can.

    A patcher's class is all of it that ``clone`` keeps, so it gets one of its own.

    Args:
        patcher: a ModelPatcher that nobody else has yet; one of a class that loads weights in its own way stays as it
            is.

    Returns:
        The same object.
    """
    from comfy.model_patcher import ModelPatcher

    kind: Any = type(patcher)
    if isinstance(patcher, ModelPatcher) and all(
        getattr(kind, name, None) is getattr(ModelPatcher, name, None) for name in _HOST_OWN
    ):
        patcher.__class__ = _in_place(kind)
    return patcher


@functools.cache
def _in_place(kind: Any) -> Any:
    class InPlacePatcher(kind):
        """A patcher whose patches are changed in place."""

        def partially_load(
            self, device_to: torch.device, extra_memory: float = 0, force_patch_weights: bool = False
        ) -> Any:
            """As the host's. With the right weights in place, all that is left to it is other nodes' object patches."""
            # the host asks this to load the whole model anew
            budget = extra_memory + self.model.model_loaded_weight_memory
            swapped = not force_patch_weights and budget > self.model_size() and swap(self, device_to)
            loaded = super().partially_load(device_to, extra_memory, force_patch_weights=force_patch_weights)
            if swapped:
                from comfy.patcher_extension import CallbacksMP

                for callback in self.get_all_callbacks(CallbacksMP.ON_LOAD):
                    callback(self, device_to, budget, force_patch_weights, True)
            return loaded

    InPlacePatcher.__name__, InPlacePatcher.__qualname__ = kind.__name__, kind.__qualname__
    return InPlacePatcher


class Kept(NamedTuple):
    """A weight as it is without patches, in ``ModelPatcher.backup``, where the host looks for the first two.

    Attributes:
        weight: on the offload device.
        inplace_update: whether the host writes it back or puts it in the parameter's place.
        patches: those that are in the parameter now, none where it is plain; None where that isn't known.
    """

    weight: torch.Tensor
    inplace_update: bool = False
    patches: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class _Place:
    """A parameter of the model: its key in the state dict, and where it is."""

    key: str
    table: dict[str, Any]
    name: str

    @property
    def parameter(self) -> Any:
        return self.table[self.name]


class _NotInPlace(Exception):
    """Why the host has to load the model itself."""


def swap(patcher: Any, device: torch.device) -> bool:
    """Make the weights of a loaded model those of ``patcher``, in place.

    Args:
        patcher: a ModelPatcher, of whose model other patches, or none, are loaded.
        device: where its model is to be.

    Returns:
        Whether they are. False: the host must load them, which it will; then they may be those of no patcher.
    """
    model = patcher.model
    if model.current_weight_patches_uuid in (None, patcher.patches_uuid):
        return False
    try:
        _check(patcher, device)
        patcher.unpatch_hooks()
        changes = _changes(patcher, device)
        # nobody's: whoever comes next, if this is cut short, loads them anew
        model.current_weight_patches_uuid = uuid.uuid4()
        for place in changes:
            _write(patcher, place, device)
    except _NotInPlace as reason:
        log.debug("Fast Compile: ComfyUI loads a %s anew: %s", type(model).__name__, reason)
        return False
    except Exception as error:  # as text: who keeps a traceback keeps weights
        words = "Fast Compile: ComfyUI loads a %s anew, it couldn't be patched in place: %s: %s"
        log.warning(words, type(model).__name__, type(error).__name__, str(error))
        return False
    model.current_weight_patches_uuid = patcher.patches_uuid
    log.debug("Fast Compile: %d weights of a %s were patched in place", len(changes), type(model).__name__)
    return True


# -- which weights, and whether they can be written ----------------------------------------------------------------


def _check(patcher: Any, device: torch.device) -> None:
    model = patcher.model
    if model.model_lowvram or not model.model_loaded_weight_memory or model.device != device:
        raise _NotInPlace(f"it isn't wholly on {device}")
    for name in ("injections", "is_injected", "weight_wrapper_patches", "weight_inplace_update", "pinned"):
        if getattr(patcher, name, None):
            raise _NotInPlace(f"its {name} ask for more than patches")
    for name in {**patcher.object_patches, **patcher.object_patches_backup}:
        now = operator.attrgetter(name)(model)
        for each in (now, patcher.object_patches.get(name), patcher.object_patches_backup.get(name)):
            if isinstance(each, torch.nn.Module) and next(each.parameters(), None) is not None:
                raise _NotInPlace(f"another node replaces {name}, with its weights")  # which the host leaves unpatched


def _changes(patcher: Any, device: torch.device) -> list[_Place]:
    """The parameters to be written.

    Raises:
        _NotInPlace: one of them can't be, or the host would do more than write them.
    """
    places = list(_places(patcher))
    if unknown := set(patcher.backup).difference(place.key for place in places):
        raise _NotInPlace(f"it doesn't patch {min(unknown)} any more")
    shared, device = _sharing(patcher.model), torch.empty(0, device=device).device
    changes = []
    for place in places:
        kept, wanted = patcher.backup.get(place.key), patcher.patches.get(place.key, ())
        if (kept is None and not wanted) or _same(getattr(kept, "patches", None), wanted):
            continue
        if not _writable(place.parameter) or place.parameter.device != device:
            raise _NotInPlace(f"{place.key} is no parameter on {device} that can be written")
        if kept is not None and not alike(kept.weight, place.parameter):
            raise _NotInPlace(f"{place.key} isn't what it was")
        if _held_by_others(place, shared):
            raise _NotInPlace(f"{place.key} is held elsewhere too")
        changes.append(place)
    return changes


def _places(patcher: Any) -> Iterator[_Place]:
    """The parameters that the host's ``load`` would patch if they had patches.

    Raises:
        _NotInPlace: ``load`` would change how a layer casts or computes its weight at each call.
    """
    # The names alone: the host's list holds the parameters themselves, and who holds them is counted.
    listed = [(path, module, tuple(names)) for *_, path, module, names in patcher._load_list()]
    for path, module, names in listed:
        if getattr(module, "weight_function", ()) or getattr(module, "bias_function", ()):
            raise _NotInPlace(f"{path} computes its weights at each call")
        if hasattr(module, "comfy_cast_weights") and hasattr(module, "prev_comfy_cast_weights") != bool(
            patcher.force_cast_weights
        ):
            raise _NotInPlace(f"{path} casts its weights at each call, or is to")
        for name in names:
            yield _Place(f"{path}.{name}" if path else name, module._parameters, name)


def _same(applied: tuple[Any, ...] | None, wanted: Any) -> bool:
    """Whether these are the same patches, the very objects: clones share them."""
    return applied is not None and len(applied) == len(wanted) and all(map(operator.is_, applied, wanted))


def _writable(parameter: torch.Tensor) -> bool:
    """Whether what is written to it reaches whoever reads it: a plain parameter, or a quantised one of which the host
    writes the parts.
    """
    return type(parameter) is torch.nn.Parameter or has_parts(parameter)


def _held_by_others(place: _Place, sharing: Counter[int]) -> bool:
    """Whether somebody besides the module would see what is written: a model merge keeps the very parameters of the
    models it was made of.

    Counted beside a parameter that surely nobody else holds. Parameters that our engine has packed share a storage, a
    part each; of a quantised one each part may lie so.
    """
    if has_parts(place.parameter):
        return sys.getrefcount(place.table[place.name]) > nobody_else()[0] or any(
            is_shared(part, made_here=True) for _, part in parts_of(place.parameter)
        )
    (objects, storages), (lone_objects, lone_storages) = holders(place.table, place.name), nobody_else()
    if storages is None or lone_storages is None:
        raise _NotInPlace("this PyTorch doesn't tell who holds a weight")
    return (
        objects > lone_objects or storages > lone_storages + sharing[place.parameter.untyped_storage().data_ptr()] - 1
    )


def _sharing(model: torch.nn.Module) -> Counter[int]:
    """How many parameters lie in each storage, by its address: apart from one another.
    Not counted where they overlap.
    """
    count: Counter[int] = Counter()
    free: dict[int, int] = {}
    for parameter in model.parameters():
        if type(parameter) is torch.nn.Parameter:
            storage = parameter.untyped_storage()
            count[storage.data_ptr()] += 1
            free[storage.data_ptr()] = free.get(storage.data_ptr(), storage.nbytes()) - parameter.nbytes
    return Counter({address: found for address, found in count.items() if free[address] >= 0})


# -- writing them --------------------------------------------------------------------------------------------------


def _write(patcher: Any, place: _Place, device: torch.device) -> None:
    """Bring one parameter from whatever patches are in it to the patcher's."""
    backup, parameter, wanted = patcher.backup, place.parameter, tuple(patcher.patches.get(place.key, ()))
    kept = backup.get(place.key)
    if kept is None:
        kept, plain = Kept(_copy(parameter, patcher.offload_device)), parameter.contiguous()
    else:
        # in its own dtype: the host's cast to float32 is quicker on a GPU
        plain = kept.weight.to(device) if wanted else kept.weight
    backup[place.key] = Kept(kept.weight, kept.inplace_update)
    value = _patched(patcher, place, plain, device) if wanted else plain
    with torch.inference_mode():  # inference tensors refuse writes outside it
        parameter.copy_(value)
    # else a second copy of a plain weight would lie on one and the same device
    if wanted or patcher.offload_device != device:
        backup[place.key] = Kept(kept.weight, kept.inplace_update, wanted)
    else:
        del backup[place.key]


def _patched(patcher: Any, place: _Place, plain: torch.Tensor, device: torch.device) -> torch.Tensor:
    """What the host makes of the weight ``plain``. It is computed in the parameter's place, which is put back."""
    parameter = place.parameter
    place.table[place.name] = plain
    try:
        patcher.patch_weight_to_device(place.key, device_to=device)
        value = place.parameter
    finally:
        place.table[place.name] = parameter
    if not alike(value, parameter):
        raise _NotInPlace(f"a patch gives {place.key} another shape or dtype")
    return value


def _copy(parameter: torch.nn.Parameter, device: torch.device) -> torch.Tensor:
    """A copy that lies as a checkpoint's weights do, even where the parameter is channels_last; no inference tensor:
    the host may need it outside inference mode.
    """
    with torch.inference_mode(False), torch.no_grad():
        if has_parts(parameter):
            # comfy-kitchen's ``to`` knows no copy=True, and gives the parameter itself
            return parameter.clone().to(device)
        return torch.empty(parameter.shape, dtype=parameter.dtype, device=device).copy_(parameter)
