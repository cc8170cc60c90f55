"""Other people's functions that are recorded with a model's own code: what they read is watched, and what no record can hold
runs live.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.taken_in import Host, Make


def free_u(strength: float = 1.3) -> dict[str, Any]:
    """As FreeU: half of the channels are scaled by their mean, in place, and the skip's low frequencies."""
    scales, on_cpu = {4: (strength, 0.4)}, dict[Any, bool]()

    def fourier(x: torch.Tensor, scale: float) -> torch.Tensor:
        found = torch.fft.fftshift(torch.fft.fftn(x.float(), dim=(-2, -1)), dim=(-2, -1))
        mask = torch.ones(found.shape, device=x.device)
        rows, columns = found.shape[-2] // 2, found.shape[-1] // 2
        mask[..., rows - 1 : rows + 1, columns - 1 : columns + 1] = scale
        found = torch.fft.ifftshift(found * mask, dim=(-2, -1))
        return torch.fft.ifftn(found, dim=(-2, -1)).real.to(x.dtype)

    def patch(h: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> Any:
        scale = scales.get(int(h.shape[1]))
        if scale is not None:
            mean = h.mean(1).unsqueeze(1)
            most, _ = torch.max(mean.view(mean.shape[0], -1), dim=-1, keepdim=True)
            h[:, : h.shape[1] // 2] = h[:, : h.shape[1] // 2] * ((scale[0] - 1) * mean / most.view(-1, 1, 1, 1) + 1)
            if skip.device not in on_cpu:
                try:
                    skip = fourier(skip, scale[1])
                except Exception:
                    on_cpu[skip.device] = True
        return h, skip

    return {"patches": {"output": [patch]}}


def perturbed(block: int = 1) -> dict[str, Any]:
    """As guidance by perturbed attention."""
    return {"patches_replace": {"attn": {block: lambda q, k, v, options: v}}}


def skipped(block: int = 1) -> dict[str, Any]:
    """As guidance by skipped layers, of both kinds."""
    return {
        "patches_replace": {
            "attn": {0: lambda q, k, v, options: torch.zeros_like(q)},
            "dit": {block: lambda args, extra: args},
        }
    }


def regional(mask: torch.Tensor) -> dict[str, Any]:
    """As differential and regional masks: what the mask is for gets other values,
    by the prompts that the call is for.
    """

    def patch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
        count = len(options["cond_or_uncond"])
        return (
            q * 1.1,
            k,
            torch.cat(
                [
                    part * (1 + number * mask)
                    for number, part in zip(options["cond_or_uncond"], v.chunk(count), strict=True)
                ]
            ),
        )

    return {"patches": {"attn": [patch]}}


class ImagePrompt:
    """As an IP-Adapter: attention to a picture's tokens by projections of its own, within a range of steps."""

    def __init__(self, image: torch.Tensor, weight: float = 0.5, start: float = 1e9, end: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(1)
        self.to_k, self.to_v = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        for layer in (self.to_k, self.to_v):
            layer.weight = nn.Parameter(torch.randn(8, 8, generator=generator), requires_grad=False)
        self.callback, self.kwargs = [self.attend], [{"image": image, "weight": weight, "start": start, "end": end}]

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        out = F.scaled_dot_product_attention(q, k, v)
        sigma = options["sigmas"].detach().cpu()[0].item() if "sigmas" in options else 1e9
        for index, callback in enumerate(self.callback):
            if sigma <= self.kwargs[index]["start"] and sigma >= self.kwargs[index]["end"]:
                out = out + callback(q, options, **self.kwargs[index])
        return out

    def attend(
        self, q: torch.Tensor, options: dict[str, Any], image: torch.Tensor, weight: float, **more: Any
    ) -> torch.Tensor:
        k, v = (
            torch.cat([layer(image) * (1 - number) for number in options["cond_or_uncond"]])
            for layer in (self.to_k, self.to_v)
        )
        return F.scaled_dot_product_attention(q, k, v) * weight


def image_prompt(seed: int = 1, **more: Any) -> dict[str, Any]:
    """One in all blocks."""
    image = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(seed))
    return {"patches_replace": {"attn": {block: ImagePrompt(image, **more) for block in range(2)}}}


def _settings(make: Callable[[Any], dict[str, Any]], values: list[Any]) -> Make:
    """Functions made for each of the values, three steps with each; off where that is None."""

    def started() -> Callable[[int], dict[str, Any]]:
        made = {index: make(value) for index, value in enumerate(dict.fromkeys(values)) if value is not None}
        order = [list(dict.fromkeys(values)).index(value) for value in values]
        return lambda step: made.get(order[step // 3], {})

    return started


def _with(make: Callable[..., dict[str, Any]], *settings: Any) -> Make:
    """The same functions at each step."""

    def started() -> Callable[[int], dict[str, Any]]:
        made = make(*settings)
        return lambda step: made

    return started


MASKS = [torch.linspace(0, 1, 4).view(1, 4, 1), torch.linspace(1, 0, 4).view(1, 4, 1)]
KINDS = {
    "free_u": (free_u, [1.3, 1.7, None, 1.3]),
    "perturbed": (perturbed, [0, 1, None, 0]),
    "skipped": (skipped, [0, 1, None, 0]),
    "regional": (lambda index: regional(MASKS[index]), [0, 1, None, 0]),
    "image_prompt": (image_prompt, [1, 2, None, 1]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_recorded_with_the_model_and_a_change_shows(kind: str) -> None:
    """On, with another setting, off, and on again; then another size."""
    host, (make, values) = Host(), KINDS[kind]
    samplings = lambda step: host.engine.taken_in.begin_sampling() or {} if step % 3 == 0 else {}  # noqa: E731
    found = host.check(_settings(make, values), 12, samplings)
    # a trace that holds layers of others goes when other layers take their place; tensors, once
    traced = 4 if kind == "image_prompt" else 3
    assert found == {"traced": traced, "fused": 12 - traced}, (found, host.engine.report.reasons)
    assert not any(signature.live for signature in host.engine.report.signatures)
    if kind != "regional":  # whose masks are of one size
        assert host.check(_settings(make, values), 3, tokens=6) == {"traced": 1, "fused": 2}


def test_the_same_function_made_anew_is_no_new_trace() -> None:
    """A node that is executed again with the same settings."""
    host = Host()
    for _ in range(3):
        host.check(_with(free_u), 2)
    assert host.engine.report.calls == {"traced": 1, "fused": 5}


def test_a_range_of_steps_has_a_trace_before_within_and_behind_it() -> None:
    """Each of them once, whatever number of samplings; with a second range there are more ways than pay."""
    host, made = Host(), image_prompt(start=18.5, end=14.5)
    for traced in (3, 0):
        found = host.check(lambda: lambda step: made, 8)
        assert found.get("traced", 0) == traced and found["fused"] == 8 - traced and host.last == (1, 0), found
    both, (other, *_) = (
        image_prompt(start=18.5, end=14.5),
        image_prompt(start=16.5, end=15.5)["patches_replace"]["attn"].values(),
    )
    for prompt in both["patches_replace"]["attn"].values():
        prompt.callback += other.callback
        prompt.kwargs += other.kwargs
    found = Host().check(lambda: lambda step: both, 16, tokens=6)
    assert found["traced"] == 4 and found["eager"] == 1, found


class Between:
    """As Anima's LLLite: within a range of steps, which is looked up by a plain number."""

    def __init__(self, start: float, end: float) -> None:
        self.start, self.end = start, end

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
        sigma = float(options["sigmas"].max().item())
        if not self.end <= sigma <= self.start:
            return q, k, v
        return q * 1.5, k, v


def test_a_number_that_is_made_a_plain_one_counts_by_what_it_may_be_compared_with() -> None:
    """Steps on either side of the range take the same way only where all comparisons come out alike."""
    host, made = Host(), Between(18.5, 14.5)
    for traced in (3, 0):
        found = host.check(lambda: lambda step: {"patches": {"attn": [made]}}, 8)
        assert found.get("traced", 0) == traced and found["fused"] == 8 - traced and host.last == (1, 0), found
    made.start = 16.5  # another setting, for the next picture
    host.engine.taken_in.begin_sampling()
    found = host.check(lambda: lambda step: {"patches": {"attn": [made]}}, 8)
    assert found["fused"] + found["traced"] == 8, found


def test_what_changes_from_step_to_step_goes_back_to_running_live() -> None:
    """Scheduled weights: two more traces, and one eager call."""
    host = Host()
    found = host.check(
        lambda: lambda step: {"patches": {"attn": [lambda q, k, v, options: (q * (1 + step), k, v)]}}, 12
    )
    assert found == {"traced": 3, "eager": 1, "fused": 8} and host.last == (0, 2), found


def test_what_the_user_changes_between_samplings_does_not() -> None:
    host = Host()
    for strength in (1.1, 1.2, 1.3, 1.4, 1.5):
        host.engine.taken_in.begin_sampling()
        assert host.check(_with(free_u, strength), 3) == {"traced": 1, "fused": 2}
    assert host.last == (1, 0)


def test_an_option_that_is_another_at_each_step() -> None:
    """It is named by the function's code, and then by nothing."""

    def named(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
        return q * (1 + options["their_step"]), k, v

    def computed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
        q.mul_(2)
        try:
            factor = options["_".join(["their", "step"])] + 1
        except Exception:
            factor = 100
        return q * factor, k, v

    for patch in (named, computed):
        host = Host()
        found = host.check(lambda: lambda step: {"patches": {"attn": [patch]}, "their_step": step}, 9)  # noqa: B023
        assert found["traced"] <= 3 and found.get("eager", 0) <= 1 and host.last == (0, 2), found
        because = "that runs live because the option 'their_step' is another from step to step"
        assert because in host.engine.report.text() and host.engine.report.text().count(because) == 1


def test_the_prompts_that_a_call_is_for_steer_it() -> None:
    host = Host()
    found = host.check(_with(regional, MASKS[0]), 9, lambda step: {"cond_or_uncond": [[0], [1, 0], [1]][step % 3]})
    assert found == {"traced": 3, "fused": 6} and host.last == (1, 0)


def test_the_report_names_it() -> None:
    host = Host()
    host.check(_with(free_u), 2)
    assert "recorded with the model's code: free_u (patches output 0)" in host.engine.report.text()


def test_functions_that_come_and_go_are_no_cause_for_modules_that_run_live() -> None:
    """As guidance by perturbed attention calls the model with them in turns,
    beside a module that no record can hold.
    """
    host = Host()
    own = host.net.join.forward
    host.net.join.forward = lambda x: own(x) * (1.5 if float(x.mean()) < 1e9 else 1.0)  # type: ignore[method-assign]
    options = {"cond_or_uncond": [0, 1], "sigmas": torch.ones(2)}
    patched = {**options, **free_u(), **perturbed()}
    for _ in range(10):
        for given in (patched, options, options):  # no multiple of how often it is looked
            host(torch.randn(2, 4, 8), given)
    assert host.engine.report.calls == {"eager": 1, "traced": 2, "fused": 27}, host.engine.report.text()
