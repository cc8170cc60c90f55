"""Live code between captured segments on a real device: what it is handed is its own, and what else it runs may be
captured, too.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.live import Host, Net

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda", 0)


def host(blocks: int = 4, **config: Any) -> Host:
    """A host whose module is on the GPU."""
    found = Host(Net(blocks), **config)
    found.net.to(DEVICE, torch.float16)
    return found


def x() -> torch.Tensor:
    """New random inputs."""
    return torch.randn(2, 64, 8, device=DEVICE, dtype=torch.float16)


def same(found: Host, given: torch.Tensor, options: dict[str, Any], other: dict[str, Any] | None = None) -> None:
    """A call gives what the module itself gives."""
    mine, theirs = found(given, **options), found.eager(given, **(other or options))
    assert float((mine.float() - theirs.float()).norm() / theirs.float().norm()) < 1e-2


def test_segments_are_replayed_around_it() -> None:
    found = host()
    for step in range(6):
        same(
            found,
            x(),
            {
                "step": step,
                "between": [lambda x, skip, options: (x * (1 + 0.1 * options["step"]), skip - options["block"])],
            },
        )
    assert found.calls == {"traced": 1, "replayed": 5}
    (signature,) = found.engine.report.signatures
    assert signature.segments == 5 and signature.captures == 1 and signature.graph_bytes > 0


def test_what_it_is_handed_it_may_keep_and_write_to() -> None:
    found = host()
    kept: list[torch.Tensor] = []
    copies: list[torch.Tensor] = []

    def keep(x: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> Any:
        skip.mul_(0.5)  # the very tensor that x is
        kept.append(x)
        copies.append(x.clone())
        return x * 2, skip

    for _ in range(5):
        found(x(), between=[keep])
    assert found.calls == {"traced": 1, "replayed": 4}
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))
    assert len({each.data_ptr() for each in kept}) == len(kept)


def test_a_compiled_module_inside_it_is_captured_and_replayed() -> None:
    """As a ControlNet that a patch calls: it shares the device's pool with the segments around it."""
    found, inner = host(), host(2)

    def call(x: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> Any:
        return x + inner(x), skip

    def eager(x: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> Any:
        return x + inner.eager(x), skip

    for _ in range(8):
        same(found, x(), {"between": [call]}, {"between": [eager]})
    assert found.calls == {"traced": 1, "replayed": 7} and inner.calls["replayed"] >= 20


def test_blocks_that_it_calls_are_captured() -> None:
    found = host()

    def around(args: dict[str, Any], extra: dict[str, Any]) -> Any:
        for _ in range(options_step(args) % 3):
            args = {**args, **extra["original_block"](args)}
        return {"x": args["x"]}

    def options_step(args: dict[str, Any]) -> int:
        step: int = args["options"]["step"]
        return step

    for step in range(1, 10):
        same(found, x(), {"step": step, "replace": {0: around, 2: around}})
    assert found.calls["replayed"] == 8, found.engine.report.reasons


def test_graphs_that_are_evicted_while_it_runs() -> None:
    found = host()

    def evict(x: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> Any:
        if options["step"] == 4:
            assert found.engine.graphs is not None
            found.engine.graphs.release_all()
        if options["step"] == 6:
            found.engine.release_graphs()
        return x * 2, skip

    for step in range(9):
        same(found, x(), {"step": step, "between": [evict]})


def test_the_same_inputs_give_the_same_bits() -> None:
    found = host()
    given, options = x(), {"between": [lambda x, skip, options: (x * 1.1, skip)]}
    found(given, **options)  # in which what runs live is given what the module itself computes
    first = found(given, **options)
    assert all(torch.equal(first, found(given, **options)) for _ in range(5))


def test_a_stream_of_its_own() -> None:
    found = host()
    stream = torch.cuda.Stream()

    def elsewhere(x: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> Any:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = x * 1.5
        torch.cuda.current_stream().wait_stream(stream)
        return result, skip

    for _ in range(6):
        same(found, x(), {"between": [elsewhere]})


def test_what_reads_values_may_run_live() -> None:
    found = host()

    def reading(x: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> Any:
        return x * (2 if float(x.mean()) > 0 else 3), skip[skip.abs() >= 0].reshape(skip.shape)

    for _ in range(6):
        same(found, x(), {"between": [reading]})
    assert found.calls == {"traced": 1, "replayed": 5}


def test_a_function_that_is_recorded_with_the_model_is_in_its_graph() -> None:
    """As FreeU, whose Fourier transforms a graph holds.

    One that brings a tensor from main memory at each call runs live: it alone.
    """
    from tests.taken_in import Host as Options

    found, elsewhere = Options(), torch.linspace(0.5, 1.5, 8)
    found.net.to(DEVICE)
    generator = torch.Generator(DEVICE).manual_seed(1)

    def fourier(h: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> Any:
        h[:, :2] = h[:, :2] * 1.3
        frequencies = torch.fft.fftshift(torch.fft.fftn(skip.float(), dim=(-2, -1)), dim=(-2, -1))
        mask = torch.ones(frequencies.shape, device=skip.device)
        mask[..., 0:1, 0:1] = 0.4
        return h, torch.fft.ifftn(torch.fft.ifftshift(frequencies * mask, dim=(-2, -1)), dim=(-2, -1)).real.to(
            skip.dtype
        )

    def brought(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
        return q * elsewhere.to(q.device), k, v

    for functions, live in (({"output": [fourier]}, 0), ({"output": [fourier], "attn": [brought]}, 2)):
        before = found.engine.report.calls.copy()
        for step in range(8):
            given = torch.randn(2, 4, 8, device=DEVICE, generator=generator)
            options = {"cond_or_uncond": [0, 1], "sigmas": torch.ones(2, device=DEVICE), "patches": functions}
            mine = found(given.clone(), options)
            with torch.inference_mode():
                expected = found.net.forward(given, options)
            far = float((mine - expected).norm() / expected.norm())
            assert far < 1e-2, (step, far, found.engine.report.text())
        signature = found.engine.report.signatures[-1]
        saw = f"{dict(found.engine.report.calls - before)}, {signature.captures} captures, live: {signature.live}\n{found.engine.report.text()}"
        assert signature.captures == 1 and len(signature.live) == live, saw
        # a call, in which it turns out that one is to run live
        spent = found.engine.report.calls["eager"] - before["eager"]
        assert spent == (1 if live else 0), saw
