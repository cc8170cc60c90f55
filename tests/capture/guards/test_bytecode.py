"""What code can read and write, found without running it. What is found may be more than what is read, never less."""

from __future__ import annotations

import copy
import dis
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from sfast_core.capture.guards.bytecode import reads_of
from sfast_core.capture.guards.chains import ATTRIBUTE, Chain, CodeReads
from sfast_core.capture.guards.stack import MUTATORS


def found(function: Any) -> CodeReads:
    return reads_of(function.__code__)


def where(chains: dict[str, Chain], what: str) -> set[str]:
    """The places below these variables that are so, as Python writes them."""

    def walk(path: str, chain: Chain) -> Iterator[str]:
        if getattr(chain, what):
            yield path
        for (kind, key), below in chain.below.items():
            yield from walk(f"{path}.{key}" if kind == ATTRIBUTE else f"{path}[{key!r}]", below)

    return {place for name, chain in chains.items() for place in walk(name, chain)}


class Base:
    def forward(self: Any, x: Any) -> Any:
        return x


class Derived(Base):
    def forward(self: Any, x: Any) -> Any:
        return super().forward(x) * self.inner.scale


class Explicit(Base):
    def forward(self: Any, x: Any) -> Any:
        return super(Explicit, self).forward(x)  # noqa: UP008


def alias(self: Any, x: Any) -> Any:
    config = self.config
    inner = config.inner
    return x * inner.scale


def either(self: Any, x: Any) -> Any:
    config = self.first if x else self.second
    return config.scale


def one_of_two(self: Any, x: Any) -> Any:
    if x:
        config = self.first
    else:
        config = self.second
    return config.scale


def assigned_later(self: Any, x: Any) -> Any:
    config = None
    for _ in range(2):
        if config is not None:
            x = x * config.scale
        config = self.config
    return x


def looped(self: Any, x: Any) -> Any:
    for block in self.blocks:
        x = block.scale * x
    return x


def list_of(self: Any, x: Any) -> Any:
    return [x * self.scale for _ in self.scales]


def generator_of(self: Any, x: Any) -> Any:
    return sum(x * y for y in self.scales)


def unpacked(self: Any, x: Any) -> Any:
    first, (second, *_) = self.pair
    return x * first * second


def walrus(self: Any, x: Any) -> Any:
    if (config := self.config) is not None:
        return config.scale
    return x


def tried(self: Any, x: Any) -> Any:
    try:
        return self.scale
    except AttributeError:
        return self.other
    finally:
        self.done = True


def within(self: Any, x: Any) -> Any:
    with self.context as config:
        return config.scale * self.scale


def in_a_string(self: Any, x: Any) -> Any:
    return f"{self.name!r:>{self.width}}"


def spread(self: Any, x: Any) -> Any:
    return self.call(x, *self.args, scale=self.scale, **self.kwargs)


def sliced(self: Any, x: Any) -> Any:
    return x[: self.length, self.first :]


def conditional(self: Any, x: Any) -> Any:
    return x if self.flag and not self.other else self.third or self.fourth


#: name: a function, and places that it reads the content of.
READS: dict[str, tuple[Any, set[str]]] = {
    "an attribute": (lambda self, x: x * self.scale, {"self.scale", "x"}),
    "a chain": (lambda self, x: self.a.b.c.d(x), {"self.a.b.c.d"}),
    "private names": (lambda self, x: self._a.__b__, {"self._a.__b__"}),
    "by an alias": (alias, {"self.config.inner.scale"}),
    "by an alias of two branches": (one_of_two, {"self.first.scale", "self.second.scale"}),
    "by an alias that is set behind its use": (assigned_later, {"self.config.scale"}),
    "what is iterated over": (looped, {"self.blocks"}),
    "what a comprehension goes over": (list_of, {"self.scales"}),
    "what a generator goes over": (generator_of, {"self.scales"}),
    "what is unpacked": (unpacked, {"self.pair"}),
    "behind a walrus": (walrus, {"self.config.scale"}),
    "tried": (tried, {"self.scale", "self.other"}),
    "a context": (within, {"self.context", "self.scale"}),
    "in a string": (in_a_string, {"self.name", "self.width"}),
    "keywords and stars": (spread, {"self.call", "self.args", "self.scale", "self.kwargs"}),
    "bounds of slices": (sliced, {"self.length", "self.first"}),
    "conditions": (conditional, {"self.flag", "self.other", "self.third", "self.fourth"}),
    "a method of super()": (Derived.forward, {"self.forward", "self.inner.scale"}),
    "an item of a constant key": (lambda self, x: x * self.table["k"][0], {"self.table['k'][0]"}),
    "an item of a computed key": (lambda self, x: x * self.table[self.key].scale, {"self.table", "self.key"}),
    "getattr of a constant name": (lambda self, x: getattr(self, "scale").k, {"self.scale.k"}),  # noqa: B009
    "getattr with a default": (lambda self, x: getattr(self, "scale", self.default), {"self.scale", "self.default"}),
    "a method of what is read": (lambda self, x: self.config.get("k", 1), {"self.config.get"}),
    "what is compared": (lambda self, x: x if self.mode == "fast" else -x, {"self.mode"}),
    "what is looked for": (lambda self, x: x if "k" in self.modes else -x, {"self.modes"}),
    "what is handed on": (lambda self, x: len(self.modes), {"self.modes"}),
}


@pytest.mark.parametrize("name", READS)
def test_what_is_read_is_found(name: str) -> None:
    function, places = READS[name]
    assert places <= where(found(function).variables, "content")


def test_an_alias_that_may_be_one_of_two() -> None:
    """Followed into both, or both are read as a whole and the name may be of any object: that is for Python's compiler
    to say.
    """
    reads = found(either)
    content = where(reads.variables, "content")
    assert {"self.first.scale", "self.second.scale"} <= content or (
        {"self.first", "self.second"} <= content and "scale" in reads.loose
    )


def test_what_is_handed_on_as_it_is_is_not_looked_into() -> None:
    """Only what is read of a chain's links counts: other attributes of ``self.a`` may change."""
    content = where(found(lambda self, x: self.a.b(x)).variables, "content")
    assert content == {"self.a.b", "x"}


def test_comparing_with_none_or_by_identity_reads_nothing_below() -> None:
    def asks(self: Any, x: Any) -> Any:
        if self.option is None or self.mode is self.modes.fast:
            x = -x
        return x if self.other is not None else 1

    variables = found(asks).variables
    assert {"self.option", "self.mode", "self.modes.fast", "self.other"} <= where(variables, "loaded")
    assert where(variables, "content") == {"x"}


def test_a_linked_list_is_followed_to_a_depth_and_then_by_name() -> None:
    def longer(self: Any) -> Any:
        return self.a.a.a.a.a.a.a.a.last.very_last

    reads = found(longer)
    assert {"last", "very_last"} <= reads.loose

    def last(node: Any) -> Any:
        while node.next is not None:
            node = node.next
        return node.value

    reads = found(last)
    assert {"node.value", "node.next.value", "node.next.next.value"} <= where(reads.variables, "content")


def test_attributes_of_what_is_not_known_are_loose() -> None:
    reads = found(lambda self, x: self.make().scale + self.blocks[x].bias + (x or self.inner).deep)
    assert {"scale", "bias", "deep"} <= reads.loose


def test_a_function_within_is_code_of_its_own() -> None:
    def outer(self: Any) -> Any:
        return lambda: self.scale

    inner = next(constant for constant in outer.__code__.co_consts if isinstance(constant, CodeType))
    assert "self.scale" not in where(found(outer).variables, "loaded")
    assert "self.scale" in where(reads_of(inner).variables, "content")


def test_what_is_closed_over_is_a_variable() -> None:
    config: Any = None

    def inner(x: Any) -> Any:
        nonlocal steps
        steps = steps + 1
        return x * config.scale

    steps = 0
    reads = found(inner)
    assert "config.scale" in where(reads.variables, "content") and "steps" in where(reads.variables, "loaded")


def test_super_of_an_explicit_class() -> None:
    assert "forward" in found(Explicit.forward).loose or "self.forward" in where(
        found(Explicit.forward).variables, "loaded"
    )


@pytest.mark.parametrize(
    ("function", "every"),
    [
        (lambda self, x: getattr(self, "sca" + x), "self"),
        (lambda self, x: getattr(self.config, self.which), "self.config"),
        (lambda self, x: hasattr(self.config, x), "self.config"),
        (lambda self, x: setattr(self.config, x, 1), "self.config"),
        (lambda self, x: vars(self.config)[x], "self.config"),
        (lambda self, x: self.config.__dict__[x], "self.config"),
        (lambda self, x: dir(self.config), "self.config"),
        (lambda self, x: list(map(getattr, [self.config], x)), "self.config"),
        (lambda self, x: eval("self.config.scale"), "self"),
        (lambda self, x: "{0.scale}".format(self.config), "self.config"),  # noqa: UP030, UP032
        (lambda self, x: "{0:{1[width]}}".format(x, self.config), "self.config"),  # noqa: UP030, UP032
        (lambda self, x: x.format(self.config), "self.config"),
    ],
)
def test_a_computed_name_may_be_any(function: Any, every: str) -> None:
    assert every in where(found(function).variables, "every")


@pytest.mark.parametrize("text", ["{}_{}", "{0}{{.}}{1!r}", "{:>{}}"])
def test_a_format_without_names_reads_what_an_f_string_reads(text: str) -> None:
    """Or it would be taken to read any attribute of all that the call comes across, where what it is given was put
    somewhere by the call itself.
    """
    scope: dict[str, Any] = {}
    exec(f"def formatted(self, x): return {text!r}.format(self.config, x)", scope)
    exec("def f_string(self, x): return f'{self.config}{x}'", scope)
    formatted, f_string = (found(scope[name]) for name in ("formatted", "f_string"))
    assert not where(formatted.variables, "every") and not formatted.anything
    assert where(formatted.variables, "content") == where(f_string.variables, "content")


def test_a_copy_reads_all_of_what_goes_on_and_not_of_what_is_called_or_asked() -> None:
    """As comfy-kitchen does it to a quantised weight's parameters: else any attribute of all that the call comes across
    was taken to be read, since they are in the place of others.
    """

    def copied(self: Any, x: Any) -> Any:
        return copy.deepcopy([self.table]), self.options.to_device(x), not self.options.transposed

    assert where(found(copied).variables, "whole") == {"self.table", "x"}


def test_names_in_strings_are_kept_where_they_may_be_names() -> None:
    def by_string(self: Any, operator: Any) -> Any:
        return (
            operator.attrgetter("config.inner")(self),
            operator.methodcaller("scaled")(self),
            "two words",
            ("in_a_tuple",),
        )

    reads = found(by_string)
    assert {"scaled", "in_a_tuple"} <= reads.words and "two words" not in reads.words
    assert "scaled" in reads.loose


def test_globals() -> None:
    reads = found(lambda x: torch_like.nn.functional.silu(x) * SCALE)  # type: ignore[name-defined]  # noqa: F821
    assert where(reads.globals, "content") == {"torch_like.nn.functional.silu", "SCALE"}
    reads = found(lambda: globals()["SCALE"])
    assert reads.dynamic and "SCALE" in reads.words


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


FILES = {"torch": "nn/modules/*.py", "diffusers": "models/unets/*.py", "transformers": "models/clip/*.py"}


@pytest.mark.parametrize("package", FILES)
def test_no_code_of_models_is_too_much(package: str) -> None:
    """Each attribute that it reads is found below a variable, a global or an import, or as one of whatever; and nothing
    that it doesn't name is.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"needs {package}")
    paths = sorted(Path(spec.origin).parent.glob(FILES[package]))
    assert paths
    for path in paths:
        for code in codes(compile(path.read_text(encoding="utf-8"), str(path), "exec")):
            reads = reads_of(code)
            named = {*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars, *reads.words}
            assert (
                reads.loose | reads.stored | reads.stored_globals | reads.globals.keys() | reads.variables.keys()
                <= named
            )
            attributes = {
                str(step.argval) for step in dis.get_instructions(code) if step.opname in ("LOAD_ATTR", "LOAD_METHOD")
            }
            assert attributes - MUTATORS - {"format", "format_map"} <= reads.loose | below(reads), (
                f"{path.name}: {code.co_name}"
            )


def below(reads: CodeReads) -> set[str]:
    """All attributes that are found below what is known."""
    names: set[str] = set()
    todo = [*reads.variables.values(), *reads.globals.values(), *reads.imports.values()]
    while todo:
        chain = todo.pop()
        names.update(name for kind, name in chain.below if kind == ATTRIBUTE)
        todo += chain.below.values()
    return names
