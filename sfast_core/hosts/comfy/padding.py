"""Prompts of language models, padded: one trace serves those of many lengths.

What comes behind a token doesn't change what a causal model makes of it. So the layers of such a model are given a
prompt with rows behind its end, up to a length that many prompts share, and what they make of those rows is cut off:
the same numbers up to rounding.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from typing import Any

import torch

from ..parts import Padded

_FINE, _FINE_UNTIL, _COARSE = 64, 512, 256  # tokens
#: What a forward of the host's takes that can be padded: a causal model's, since it can go on from what it has kept.
_NEEDED = frozenset({"embeds", "attention_mask", "past_key_values"})
_CAUSAL = "comfy.text_encoders.llama"  #: the host's file of causal models, which in older versions keep nothing
_TOKENS = "embeds"
_ALONG = ("attention_mask", "position_ids")  #: the tokens are their last dimension
_OTHERS = ("past_key_values", "deepstack_embeds", "visual_pos_masks")  #: with one of these a call stays as it is


def may_be_padded(module: torch.nn.Module) -> bool:
    """Whether a module is the layers of a causal model as the host has them."""
    taken = inspect.signature(type(module).forward).parameters.keys()
    return taken >= _NEEDED or (type(module).__module__ == _CAUSAL and taken >= {_TOKENS, *_ALONG})


def padded(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Padded | None:
    """The arguments of a call, all by name, for a longer prompt; None where it stays as it is."""
    forward = type(module).forward
    try:
        given = inspect.signature(forward).bind(module, *args, **kwargs).arguments
    except TypeError:
        return None
    named = {name: value for name, value in list(given.items())[1:] if name in _read(forward)}
    embeds = named.get(_TOKENS)
    if (
        not isinstance(embeds, torch.Tensor)
        or embeds.dim() != 3
        or any(named.get(name) is not None for name in _OTHERS)
    ):
        return None
    length = embeds.shape[1]
    wanted = padded_length(length)
    if wanted != length:
        named[_TOKENS] = torch.nn.functional.pad(embeds, (0, 0, 0, wanted - length))
        for name in _ALONG:
            value = named.get(name)
            if isinstance(value, torch.Tensor):
                if value.shape[-1] != length or (value.dim() > 2 and value.shape[-2] == length):
                    return None  # a mask of its own for each pair of tokens, say
                named[name] = torch.nn.functional.pad(value, (0, wanted - length))
    return Padded(named, lambda result: _cut(result, wanted, length), frozenset({_TOKENS}))


def padded_length(length: int) -> int:
    """The length that prompts of so many tokens are given."""
    step = _FINE if length <= _FINE_UNTIL else _COARSE
    return -(-length // step) * step


def _cut(result: Any, wanted: int, length: int) -> Any:
    """A result without what is behind the prompt's end."""
    if isinstance(result, (tuple, list)):
        return type(result)([_cut(item, wanted, length) for item in result])
    if wanted != length and isinstance(result, torch.Tensor) and result.dim() > 1 and result.shape[-2] == wanted:
        return result.narrow(-2, 0, length).clone(memory_format=torch.contiguous_format)
    return result


def _read(forward: Callable[..., Any]) -> frozenset[str]:
    """The parameters that a forward looks at, or that have to be given. What is given for others, such as how many
    tokens each prompt has, doesn't change what it computes.
    """
    code = inspect.unwrap(forward).__code__
    names = {
        *code.co_cellvars,
        *(
            str(name)
            for step in dis.get_instructions(code)
            if "LOAD_FAST" in step.opname
            for name in _names(step.argval)
        ),
    }
    needed = (name for name, each in inspect.signature(forward).parameters.items() if each.default is each.empty)
    return frozenset({*names, *needed})


def _names(argument: Any) -> tuple[Any, ...]:
    return argument if isinstance(argument, tuple) else (argument,)  # two at once, in newer Pythons
