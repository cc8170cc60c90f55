"""Copies from pinned memory that nobody waits for, behind which their sources change."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sfast_core.hosts.comfy.uploads import STAGED_BYTES, Uploads

pytestmark = pytest.mark.gpu


def test_what_arrives_is_what_was_handed_over() -> None:
    uploads, noise = Uploads(), torch.zeros(1, device="cuda")
    prompt, came = torch.empty(STAGED_BYTES), list[torch.Tensor]()

    def call(_: torch.Tensor, c_crossattn: torch.Tensor) -> Any:
        assert c_crossattn.is_pinned()
        torch.cuda._sleep(10_000_000)
        came.append(torch.empty_like(c_crossattn, device="cuda").copy_(c_crossattn, non_blocking=True))

    for step in range(12):
        prompt.fill_(step)
        uploads.through((noise,), {"c_crossattn": prompt}, call)
        prompt.fill_(-1)
    assert all(bool((each == step).all()) for step, each in enumerate(came))
