"""Other people's functions that run live in a compiled module: between segments, on tensors of their own, with each call's
own options.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from typing import Any

import pytest
import torch

from sfast_core.runtime.graph_lifetimes import ENOUGH_CALLS
from tests.capturing import pretend_graphs
from tests.live import Host, Interrupted, Net, fused_and_captured, path

X = torch.randn(2, 5, 8)


host = fused_and_captured()


def test_a_function_between_blocks_runs_at_each_call(host: Host) -> None:
    host.check(lambda: {"between": [lambda x, skip, options: (x * 1.1, skip - 1)]}, 5)
    assert host.calls == {"traced": 1, path(host): 4}


def test_each_call_has_its_own_options(host: Host) -> None:
    def make() -> dict[str, Any]:
        return {
            "between": [
                lambda x, skip, options: (x * (1 + options["sigma"] + options["block"] + options["step"]), skip)
            ]
        }

    host.check(make, 5)
    assert host.calls == {"traced": 1, path(host): 4}


def test_it_may_keep_count_and_keep_what_it_is_handed(host: Host) -> None:
    def make() -> dict[str, Any]:
        kept: list[torch.Tensor] = []

        def function(x: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> Any:
            kept.append(x)
            return x + 0.1 * kept[0].mean() * len(kept) + 0.01 * kept[-2 if len(kept) > 1 else 0], skip

        return {"between": [function]}

    host.check(make, 6)
    assert host.calls == {"traced": 1, path(host): 5}


def test_it_may_draw_random_numbers(host: Host) -> None:
    host.check(
        lambda: {
            "before": [lambda x, options: x + torch.randn_like(x)],
            "after": [lambda x, options: x + torch.rand(())],
        },
        5,
    )
    assert host.calls == {"traced": 1, path(host): 4}


def test_it_may_write_to_what_it_is_handed(host: Host) -> None:
    def make() -> dict[str, Any]:
        def function(x: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> Any:
            x[:, :2] *= 1.5
            skip.add_(options["step"])
            return x, skip

        return {"between": [function]}

    host.check(make, 5)
    assert host.calls == {"traced": 1, path(host): 4}


def test_what_it_writes_the_model_sees(host: Host) -> None:
    """``x`` is also the skip that the model has kept."""

    def make() -> dict[str, Any]:
        def function(args: dict[str, Any], extra: dict[str, Any]) -> Any:
            args["x"].mul_(1.5)
            return {"x": args["x"] + 1}

        return {"replace": {1: function}}

    host.check(make, 5)
    assert host.calls == {"traced": 1, path(host): 4}


def test_one_that_begins_to_write_later_is_traced_again(host: Host) -> None:
    def make() -> dict[str, Any]:
        def function(args: dict[str, Any], extra: dict[str, Any]) -> Any:
            if args["options"]["step"] > 2:
                args["x"].mul_(1.5)
            return {"x": args["x"] + 1}

        return {"replace": {1: function}}

    host.check(make, 7)
    assert host.calls["traced"] == 2 and host.calls["eager"] == 1


def test_the_models_own_block_may_be_called_by_it(host: Host) -> None:
    def make() -> dict[str, Any]:
        def around(args: dict[str, Any], extra: dict[str, Any]) -> Any:
            args["x"] = args["x"] * 1.1
            return {"x": extra["original_block"](args)["x"] - 0.2 * args["options"]["sigma"]}

        return {"replace": {0: around, 2: around}, "inside": [lambda x, options: x + options["block"]]}

    host.check(make, 5)
    assert host.calls == {"traced": 1, path(host): 4}


def test_a_block_that_is_called_sometimes_or_twice(host: Host) -> None:
    def make() -> dict[str, Any]:
        def around(args: dict[str, Any], extra: dict[str, Any]) -> Any:
            for _ in range((1, 0, 2, 1, 0, 3)[args["options"]["step"]]):
                args = {**args, **extra["original_block"](args)}
            return {"x": args["x"]}

        return {"replace": {1: around}}

    host.check(make, 6)
    assert host.calls == {"traced": 1, path(host): 5}


def test_a_block_that_was_left_out_at_first(host: Host) -> None:
    def make() -> dict[str, Any]:
        def around(args: dict[str, Any], extra: dict[str, Any]) -> Any:
            return extra["original_block"](args) if args["options"]["step"] >= 2 else args

        return {"replace": {1: around}}

    host.check(make, 7)
    assert host.calls["eager"] == 1 and host.calls["traced"] == 2, host.engine.report.reasons


def test_another_structure_costs_a_trace_and_runs_nothing_twice(host: Host) -> None:
    counts = {"mine": 0}

    def make() -> dict[str, Any]:
        def first(x: torch.Tensor, options: dict[str, Any]) -> Any:
            counts["mine"] += 1
            return x + options["step"]

        return {
            "before": [first],
            "after": [lambda x, options: x.double() if options["step"] == 3 else x, lambda x, options: x.float()],
        }

    host.check(make, 6)
    assert counts["mine"] == 12 and host.calls["eager"] == 1 and host.calls["traced"] == 2


def test_what_it_raises_reaches_the_caller_and_the_next_call_is_fast(host: Host) -> None:
    def make(wrong: bool) -> dict[str, Any]:
        def function(x: torch.Tensor, options: dict[str, Any]) -> Any:
            if wrong:
                raise ZeroDivisionError("theirs")
            return x * 2

        return {"after": [function]}

    for _ in range(3):
        host(X, **make(False))
    with pytest.raises(ZeroDivisionError, match="theirs"):
        host(X, **make(True))
    torch.testing.assert_close(host(X, **make(False)), host.eager(X, **make(False)))
    assert host.calls == {"traced": 1, path(host): 3 + (path(host) == "fused") * 0, "eager": 1}


@pytest.mark.parametrize("at", [0, 2, 3])
def test_an_interruption_inside_stops_the_call(host: Host, at: int) -> None:
    def function(x: torch.Tensor, options: dict[str, Any]) -> Any:
        if options["step"] == at:
            raise Interrupted
        return x * 2

    for step in range(5):
        if step == at:
            with pytest.raises(Interrupted):
                host(X, step=step, after=[function])
        else:
            torch.testing.assert_close(host(X, step=step, after=[function]), host.eager(X, step=step, after=[function]))
    assert host.calls.get("eager") is None and host.calls["traced"] == 1


def test_it_may_call_the_compiled_module_itself(host: Host) -> None:
    def make() -> dict[str, Any]:
        def function(x: torch.Tensor, options: dict[str, Any]) -> Any:
            return x + host(x.detach().clone(), after=[lambda y, options: y + 1])

        return {"after": [function]}

    for _ in range(5):
        torch.testing.assert_close(host(X, **make()), host.eager(X, **make()), rtol=1e-4, atol=1e-5)
    assert not host.calls.get("eager", 0) or host.calls["eager"] <= 1


def test_another_function_at_the_same_place_is_no_new_trace(host: Host) -> None:
    for factor in (1.0, 2.0, 3.0, 4.0):
        options = {"after": [lambda x, options, factor=factor: x * factor]}
        torch.testing.assert_close(host(X, **options), host.eager(X, **options))
    assert host.calls == {"traced": 1, path(host): 3}


def test_on_off_and_on_again(host: Host) -> None:
    options = {"between": [lambda x, skip, options: (x * 1.1, skip)]}
    for given in ({}, options, {}, options, options, {}):
        torch.testing.assert_close(host(X, **given), host.eager(X, **given), rtol=1e-4, atol=1e-5)
    assert host.calls == {"traced": 2, path(host): 4}


def test_graphs_that_go_while_it_runs(host: Host) -> None:
    def function(x: torch.Tensor, options: dict[str, Any]) -> Any:
        if options["step"] == 3:
            host.engine.reset()
        return x * 2

    for step in range(6):
        options = {"between": [lambda x, skip, options: (function(x, options), skip)]}
        torch.testing.assert_close(
            host(X, step=step, **options), Net.forward(host.net, X, {"step": 0, **options}), rtol=1e-4, atol=1e-5
        )


def test_the_call_that_captures_counts_among_those_that_its_graphs_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a program without live code: graphs that serve enough calls are captured again each time."""
    graphs, host, pictures = pretend_graphs(monkeypatch), Host(), 4
    options = {"between": [lambda x, skip, options: (x * 1.1, skip - 1)]}
    host(X, **options)
    for _ in range(pictures):
        for _ in range(ENOUGH_CALLS):
            host(X, **options)
        graphs.release_all()
    assert graphs.captures == pictures and host.calls == {"traced": 1, "replayed": pictures * ENOUGH_CALLS}


def test_the_report_names_it_and_its_share(host: Host) -> None:
    def their_patch(x: torch.Tensor, options: dict[str, Any]) -> Any:
        return x * 2

    for _ in range(4):
        host(X, after=[their_patch], before=[their_patch])
    (signature,) = host.engine.report.signatures
    assert signature.segments == 2 and len(signature.live) == 2 and signature.live_s > 0
    text = host.engine.report.text()
    assert "2 segments, between them: " in text and "of the time" in text


def test_options_that_come_and_go_are_found_or_not_as_they_are(host: Host) -> None:
    def function(x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        return x * options.get("scale", 1.0) + len(options)

    for more in ({}, {"scale": 2.0}, {}, {"scale": 3.0}, {"other": 1}, {"scale": 4.0}):
        options = {"before": [function], **more}
        torch.testing.assert_close(host(X, **options), host.eager(X, **options), rtol=1e-4, atol=1e-5)
    assert host.calls == {"traced": 3, path(host): 3}


def test_what_one_left_in_the_options_is_there_where_the_original_forward_finishes(host: Host) -> None:
    """As attention couple does: one function notes in the options how it has repeated the batch, and another reads that
    there.
    """

    def make() -> dict[str, Any]:
        steps = itertools.count()

        def before(x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
            options["times"] = 1 + next(steps) % 2
            options.setdefault("seen", []).append("before")
            return x.repeat(options["times"], 1, 1)

        def after(x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
            assert options["seen"] == ["before"]
            return x.chunk(options["times"])[0] * options["times"]

        return {"before": [before], "after": [after]}

    host.check(make, 6)


class Looking(torch.nn.Module):
    """Asks what a function has returned, as ComfyUI's transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        out = options["patches"][0]({"x": x, "options": options})
        if "x" in out:
            x = out["x"]
        y = out.get("y")
        return self.lin(x) if y is None else self.lin(x) + y


def test_what_the_model_looks_for_in_a_result_steers_it(host: Host) -> None:
    mine = Host(Looking())

    def make() -> dict[str, Any]:
        def patch(args: dict[str, Any]) -> dict[str, Any]:
            step = args["options"]["step"]
            return {
                **({"x": args["x"] + 1} if step != 3 else {}),
                **({"y": args["x"]} if step in (5, 6) else {}),
                f"more {step}": step,
            }

        return {"patches": [patch]}

    mine.check(make, 9)
    assert mine.calls["eager"] >= 2 and mine.calls["traced"] >= 3


def test_nothing_of_a_calls_own_is_kept(host: Host) -> None:
    class Function:
        def __call__(self, x: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> Any:
            return x * 2, skip

    class State:
        """Of a sampler's."""

    alive = []
    for _ in range(3):
        function, state, x = Function(), State(), torch.randn(2, 5, 8)
        host(x, between=[function], state=state)
        alive.append([weakref.ref(thing) for thing in (function, state, x)])
        del function, state, x
    gc.collect()
    assert not any(ref() for refs in alive for ref in refs), host.calls


def test_weights_that_change_around_it(host: Host) -> None:
    """New values in place, new parameters, and one that lies otherwise, which is traced again."""
    options = {"between": [lambda x, skip, options: (x * 1.1, skip)]}
    layer = host.net.blocks[1].up

    def check(calls: int) -> None:
        for _ in range(calls):
            x = torch.randn(2, 5, 8)
            torch.testing.assert_close(host(x, **options), host.eager(x, **options), rtol=1e-4, atol=1e-5)

    check(3)
    with torch.no_grad():
        layer.weight.mul_(2)
    check(2)
    layer.weight = torch.nn.Parameter(layer.weight.detach() * 0.5, requires_grad=False)
    check(2)
    assert host.calls["traced"] == 1 and not host.calls.get("eager")
    layer.weight = torch.nn.Parameter(layer.weight.detach().t().contiguous().t(), requires_grad=False)
    check(3)
    assert host.calls["traced"] == 2, host.engine.report.text()
