"""Which of the random models a test of them takes."""

from __future__ import annotations

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A tenth of what ``--fuzz-models`` says, or the one of ``--fuzz-seed``, half of them with graphs."""
    if not {"captured", "seeds"} <= set(metafunc.fixturenames):
        return
    one, count = metafunc.config.getoption("--fuzz-seed"), metafunc.config.getoption("--fuzz-models") // 10
    halves = {captured: range(start, max(2, count), 2) for start, captured in enumerate((True, False))}
    metafunc.parametrize(
        ("captured", "seeds"),
        [(captured, half if one is None else range(one, one + 1)) for captured, half in halves.items()],
        ids=["graphs", "kernel by kernel"],
    )
