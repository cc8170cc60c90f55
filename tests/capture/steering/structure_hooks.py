"""What steers a forward: hooks and parametrizations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules import module as all_modules
from torch.nn.utils import parametrizations, parametrize, weight_norm

from tests.capture.steering.structure import CASES, Root, Steered, Twice, case, linear, own

# -- hooks and parametrizations -------------------------------------------------------------------------------------


def hooked(register: Callable[[nn.Module], Any], module: nn.Module | None = None) -> Steered:
    module = linear() if module is None else module
    handles: list[Any] = []
    return Steered(Root(module), lambda: handles.append(register(module)), lambda: handles.pop().remove())


CASES["a forward hook"] = lambda: hooked(lambda m: m.register_forward_hook(lambda module, args, y: y * 5))
CASES["a forward hook with keywords"] = lambda: hooked(
    lambda m: m.register_forward_hook(lambda module, args, kwargs, y: y * 5, with_kwargs=True)
)
CASES["a forward hook of one's own block"] = lambda: hooked(
    lambda m: m.register_forward_hook(lambda module, args, y: y * 5), own(lambda s, x: s.linear(x))
)
CASES["a forward hook that always runs"] = lambda: hooked(
    lambda m: m.register_forward_hook(lambda module, args, y: y * 5, always_call=True)
)
CASES["a forward hook in a nested child"] = lambda: hooked(
    lambda m: m[0][0].register_forward_hook(lambda module, args, y: y * 5), nn.Sequential(nn.Sequential(linear()))
)
CASES["a forward pre-hook"] = lambda: hooked(lambda m: m.register_forward_pre_hook(lambda module, args: (args[0] * 5,)))
CASES["a forward pre-hook with keywords"] = lambda: hooked(
    lambda m: m.register_forward_pre_hook(lambda module, args, kwargs: ((args[0] * 5,), kwargs), with_kwargs=True)
)


@case("a hook of the root")
def _() -> Steered:
    root, handles = Root(linear()), []
    return Steered(
        root,
        lambda: handles.append(root.register_forward_hook(lambda module, args, y: y * 5)),
        lambda: handles.pop().remove(),
    )


@case("a hook of all modules")
def _() -> Steered:
    handles: list[Any] = []
    hook = lambda module, args, y: y * 5 if type(module) is nn.Linear else None  # noqa: E731

    def change() -> None:
        if not all_modules._global_forward_hooks:
            handles.append(all_modules.register_module_forward_hook(hook))

    return Steered(Root(linear()), change, lambda: handles.pop().remove() if handles else None)


@case("a pre-hook of all modules")
def _() -> Steered:
    handles: list[Any] = []
    hook = lambda module, args: (args[0] * 5,) if type(module) is nn.Linear else None  # noqa: E731

    def change() -> None:
        if not all_modules._global_forward_pre_hooks:
            handles.append(all_modules.register_module_forward_pre_hook(hook))

    return Steered(Root(linear()), change, lambda: handles.pop().remove() if handles else None)


@case("a hook's number, of a hook that was there")
def _() -> Steered:
    module, box = linear(), [1.0]
    module.register_forward_hook(lambda m, args, y: y * box[0])
    return Steered(Root(module), lambda: box.__setitem__(0, 2.0), lambda: box.__setitem__(0, 1.0))


@case("a hook that was there goes")
def _() -> Steered:
    module = linear()
    handles = [module.register_forward_hook(lambda m, args, y: y * 2)]
    return Steered(
        Root(module),
        lambda: handles.pop().remove(),
        lambda: handles.append(module.register_forward_hook(lambda m, args, y: y * 2)),
    )


@case("a parametrization comes")
def _() -> Steered:
    module = linear()
    return Steered(
        Root(module),
        lambda: parametrize.register_parametrization(module, "weight", Twice().eval()),
        lambda: parametrize.remove_parametrizations(module, "weight", leave_parametrized=False),
    )


@case("a parametrization's number")
def _() -> Steered:
    module = linear()
    parametrize.register_parametrization(module, "weight", Twice())
    step = module.parametrizations.weight[0]
    return Steered(Root(module), lambda: setattr(step, "factor", 3.0), lambda: setattr(step, "factor", 2.0))


@case("spectral_norm comes")
def _() -> Steered:
    module = linear()
    return Steered(Root(module), lambda: parametrizations.spectral_norm(module).eval())


@case("weight_norm's magnitude")
def _() -> Steered:
    module = weight_norm(linear())
    return Steered(Root(module), lambda: module.weight_g.data.mul_(2), lambda: module.weight_g.data.div_(2))
