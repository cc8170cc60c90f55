"""Plots: drawn from the rows that a benchmark writes, left out where there is no matplotlib."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cold_start, comfy, interleaved, kernels, machine, ops, plot

FACTS = {"gpu": "A GPU", "torch": "2.11.0", "commit": "abc", "date": "2026-01-01"}
ROWS: dict[str, list[Any]] = {
    "unet": [
        interleaved.Row(model, "float16", provider, ms=ms)
        for model, ms in (("SD1.5 512x512", 10.0), ("SDXL 1024x1024", 60.0))
        for provider in interleaved.PROVIDERS
    ],
    "vae": [
        interleaved.Row("decoder", dtype, provider, ms=20.0)
        for dtype in ("float16", "bfloat16")
        for provider in ("eager", "ours")
    ],
    "cold_start": [
        cold_start.Row("SDXL", "ours", cache, 1.0, 7.0, 0.3, [1.5, 1.2], [0.2, 0.2], [0.5, 0.5])
        for cache in cold_start.CACHES
    ],
    "comfy": [comfy.Row("SDXL", "native", variant, 30, 2.0, 1.0, 2**33, 1e-3) for variant in comfy.VARIANTS],
    "ops": [
        ops.Row("attention", "SDXL", "2x10", "eager", us=40.0, percent_of_peak=40.0),
        ops.Row("attention", "SDXL", "2x10", "cudnn", us=20.0, percent_of_peak=80.0),
        ops.Row("attention", "SDXL", "2x10", "xformers", why_not="it isn't there"),
    ],
    "unet_kernels": [kernels.KernelRow("SDXL", "ours", kind, 3.0, 10.0) for kind in kernels.KINDS],
}


def text_of(figure: Any) -> list[str]:
    """All that can be read on a figure."""
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def drawn(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What can be read on the plot that writing these rows makes."""
    pytest.importorskip("matplotlib")
    title, chart = plot.CHARTS[name]
    figures: list[Any] = []

    def kept(rows: plot.Rows) -> Any:
        figures.append(chart(rows))
        return figures[-1]

    monkeypatch.setitem(plot.CHARTS, name, (title, kept))
    machine.write(folder, name, ROWS[name], "a table", FACTS)
    assert (folder / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    return text_of(figures[0])


@pytest.mark.parametrize("name", ROWS)
def test_every_plot_has_its_title_its_unit_and_its_machine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = drawn(name, tmp_path, monkeypatch)
    assert plot.CHARTS[name][0] in text and "A GPU, torch 2.11.0, commit abc, 2026-01-01" in text
    assert any(unit in line for line in text for unit in ("ms ", "seconds (", "per second", "%")) and any(
        "is better" in line for line in text
    )


def test_each_run_of_several_is_named() -> None:
    rows = [{**FACTS, "commit": commit} for commit in ("abc", "abc", "def")]
    assert plot.machine_of(rows) == "A GPU, torch 2.11.0, commit abc and def, 2026-01-01"


def test_bars_are_labelled_with_their_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn("unet", tmp_path, monkeypatch)
    assert text.count("60.00") == 4 and "Fast Compile" in text and "SDXL 1024x1024" in text
    assert "decoder\nbfloat16" in drawn("vae", tmp_path, monkeypatch)
    assert "10.0 s" in drawn("cold_start", tmp_path, monkeypatch), "7 + 0.3 + 1.5 + 1.2"
    assert "30.0" in drawn("comfy", tmp_path, monkeypatch)
    assert "cudnn" in drawn("ops", tmp_path, monkeypatch)


def test_without_matplotlib_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(builtins, "__import__", _without("matplotlib", builtins.__import__))
    machine.write(tmp_path, "unet", ROWS["unet"], "a table", FACTS)
    assert "unet.png is left out: matplotlib is not installed" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["unet.csv", "unet.md"]


def _without(missing: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def find(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == missing:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    return find


def test_a_folder_of_another_machine_is_drawn_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    machine.write(tmp_path, "comfy", ROWS["comfy"], "a table", FACTS)
    (tmp_path / "comfy.png").unlink()
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n", "utf-8")
    monkeypatch.setattr("sys.argv", ["plot", str(tmp_path)])
    plot.main()
    assert capsys.readouterr().out == "drew comfy.png\n" and (tmp_path / "comfy.png").exists()
