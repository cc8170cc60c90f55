"""``python -m benchmarks.plot FOLDER``: a PNG beside each CSV of a benchmark, drawn from its rows alone.

Needs matplotlib.

A benchmark draws its own where matplotlib is installed; on a machine without it, copy the CSVs to one that has it and
run this.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .command import folder_of
from .tables import Rows, read

# Okabe and Ito's palette, which is told apart without red or green; a provider has one colour on all plots.
_COLOURS = {
    "eager": "#999999",
    "compile": "#E69F00",
    "compile-reduce-overhead": "#D55E00",
    "ours": "#0072B2",
}
_OTHERS = (
    "#0072B2",
    "#56B4E9",
    "#009E73",
    "#E69F00",
    "#D55E00",
    "#CC79A7",
    "#F0E442",
    "#999999",
    "#555555",
    "#BBBBBB",
    "#000000",
)
_NAMES = {
    "compile": "torch.compile",
    "compile-reduce-overhead": "torch.compile reduce-overhead",
    "ours": "Fast Compile",
}
_ROW_INCHES = 0.32


def draw(path: Path) -> Path | None:
    """Draw a CSV's plot beside it; None where there is none for it, or no matplotlib (which is said)."""
    if path.stem not in CHARTS:
        return None
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print(f"{path.stem}.png is left out: matplotlib is not installed (`python -m benchmarks.plot` draws it later)")
        return None
    rows = read(path)
    if not rows:
        return None
    title, chart = CHARTS[path.stem]
    figure = chart(rows)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.text(0.01, -0.01, machine_of(rows), fontsize=7, color="#555555", va="top")
    picture = path.with_suffix(".png")
    figure.savefig(picture, dpi=150, facecolor="white", bbox_inches="tight", metadata={"Software": None})
    return picture


def machine_of(rows: Rows) -> str:
    """What the rows were measured on, in one line; where they are of several runs, each of what differs."""
    names = {"gpu": "", "ComfyUI": "ComfyUI ", "torch": "torch ", "peak": "peak ", "commit": "commit ", "date": ""}
    found = {name: list(dict.fromkeys(row[name] for row in rows if row.get(name))) for name in names}
    return ", ".join(names[name] + " and ".join(values) for name, values in found.items() if values)


def ms_by_provider(rows: Rows) -> Any:
    """Bars of milliseconds: a group per subject, a bar per provider."""
    bars = {(_subject(row, rows), row["provider"]): float(row["ms"]) for row in rows}
    return _grouped(bars, "ms per call, median (less is better)", "{:.2f}")


def iterations(rows: Rows) -> Any:
    """Bars of sampling steps per second: a group per model and allocator, a bar per variant."""
    bars = {
        (f"{row['model']}\n{row['allocator']}", row["variant"]): int(row["steps"]) / float(row["sampling_s"])
        for row in rows
    }
    return _grouped(bars, "sampling steps per second (more is better)", "{:.1f}")


def _subject(row: dict[str, str], rows: Rows) -> str:
    several = len({other["dtype"] for other in rows}) > 1
    return f"{row['model']}\n{row['dtype']}" if several else row["model"]


def _grouped(bars: dict[tuple[str, str], float], label: str, digits: str) -> Any:
    groups = list(dict.fromkeys(group for group, _ in bars))
    series = list(dict.fromkeys(name for _, name in bars))
    figure, axes = _figure(max(1.6, _ROW_INCHES * (len(bars) + len(groups)) + 0.8))
    position, ticks = 0.0, []
    for group in groups:
        inside = [name for name in series if (group, name) in bars]
        ticks.append(position + (len(inside) - 1) / 2)
        for name in inside:
            drawn = axes.barh(position, bars[group, name], height=0.85, color=_COLOURS.get(name, "#009E73"))
            axes.bar_label(drawn, [digits.format(bars[group, name])], padding=3, fontsize=8)
            position += 1
        position += 0.7
    axes.set_yticks(ticks, groups)
    axes.set_xlim(0, max(bars.values()) * 1.12)
    axes.set_xlabel(label)
    handles = [axes.barh(0, 0, color=_COLOURS.get(name, "#009E73"), label=_NAMES.get(name, name)) for name in series]
    _legend(axes, handles)
    return _finish(axes)


def cold_start(rows: Rows) -> Any:
    """Stacked bars of seconds: the first call, the next three, and the first calls at the other sizes."""
    stacks = {}
    for row in rows:
        sizes = json.loads(row["sizes_first_s"])
        parts = {"first call": float(row["first_call_s"]), "next three calls": float(row["next_calls_s"])}
        parts |= {f"first call at size {number}": seconds for number, seconds in enumerate(sizes, 2)}
        stacks[f"{row['model']}\n{_NAMES.get(row['provider'], row['provider'])}, caches {row['cache']}"] = parts
    return _stacked(stacks, "seconds (less is better)", "{:.1f} s")


def kernel_time(rows: Rows) -> Any:
    """Stacked bars of milliseconds: the kernels of one call by kind."""
    stacks: dict[str, dict[str, float]] = {}
    for row in rows:
        stacks.setdefault(f"{row['model']}\n{_NAMES.get(row['provider'], row['provider'])}", {})[row["kind"]] = float(
            row["ms"]
        )
    return _stacked(stacks, "ms of kernels in one call (less is better)", "{:.1f} ms")


def _stacked(stacks: dict[str, dict[str, float]], label: str, digits: str) -> Any:
    figure, axes = _figure(0.5 * len(stacks) + 1.2)
    kinds = list(dict.fromkeys(kind for parts in stacks.values() for kind in parts))
    left = [0.0] * len(stacks)
    handles = []
    for kind, colour in zip(kinds, _OTHERS * (len(kinds) // len(_OTHERS) + 1), strict=False):
        widths = [parts.get(kind, 0.0) for parts in stacks.values()]
        handles.append(
            axes.barh(range(len(stacks)), widths, left=left, height=0.65, color=colour, edgecolor="white", label=kind)
        )
        left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.bar_label(handles[-1], [digits.format(total) for total in left], padding=3, fontsize=8)
    axes.set_yticks(range(len(stacks)), stacks)
    axes.set_xlim(0, max(left) * 1.12)
    axes.set_xlabel(label)
    _legend(axes, handles)
    return _finish(axes)


def percent_of_peak(rows: Rows) -> Any:
    """A line per op and shape, from eager's share of the peak to that of the fastest kernel."""
    shapes: dict[tuple[str, str, str], Rows] = {}
    for row in rows:
        if float(row["us"]):
            shapes.setdefault((row["op"], row["model"], row["shape"]), []).append(row)
    figure, axes = _figure(0.21 * len(shapes) + 1.2, width=9.0)
    for position, found in enumerate(shapes.values()):
        eager = next((float(row["percent_of_peak"]) for row in found if row["impl"] == "eager"), 0.0)
        best = max(found, key=lambda row: float(row["percent_of_peak"]))
        reached = float(best["percent_of_peak"])
        axes.plot([eager, reached], [position, position], color="#BBBBBB", linewidth=2, zorder=1)
        axes.scatter(eager, position, color=_COLOURS["eager"], s=28, zorder=2, label="eager" if not position else None)
        axes.scatter(
            reached,
            position,
            color=_COLOURS["ours"],
            marker="D",
            s=28,
            zorder=3,
            label="fastest" if not position else None,
        )
        axes.annotate(
            best["impl"], (reached, position), xytext=(7, 0), textcoords="offset points", va="center", fontsize=7
        )
    axes.set_yticks(range(len(shapes)), [f"{op}  {model}  {shape}" for op, model, shape in shapes], fontsize=7)
    axes.axvline(100, color="#555555", linewidth=0.8, linestyle=":")
    axes.set_xlim(0, max(110.0, *(float(row["percent_of_peak"]) * 1.15 for row in rows)))
    axes.set_xlabel("% of this run's peak, matrix product or copy, whichever bounds the op (more is better)")
    _legend(axes, axes.get_legend_handles_labels()[0])
    return _finish(axes)


def _figure(height: float, width: float = 8.0) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # not pyplot: no window, and nothing global

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _legend(axes: Any, handles: list[Any]) -> None:
    axes.legend(
        handles=handles,
        frameon=False,
        fontsize=8,
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=4,
        borderaxespad=0.2,
    )


def _finish(axes: Any) -> Any:
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#E5E5E5")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return axes.figure


#: by the name of the benchmark: the plot's title, and what draws it
CHARTS: dict[str, tuple[str, Callable[[Rows], Any]]] = {
    "unet": ("One UNet forward", ms_by_provider),
    "transformer": ("One forward of a diffusion transformer", ms_by_provider),
    "vae": ("VAE decoder", ms_by_provider),
    "text_encoder": ("One prompt through a text encoder", ms_by_provider),
    "controlnet": ("One step of ControlNet and UNet", ms_by_provider),
    "unet_kernels": ("Where a UNet forward's time goes", kernel_time),
    "transformer_kernels": ("Where a transformer's time goes", kernel_time),
    "vae_kernels": ("Where the VAE decoder's time goes", kernel_time),
    "text_encoder_kernels": ("Where a text encoder's time goes", kernel_time),
    "controlnet_kernels": ("Where the time of ControlNet and UNet goes", kernel_time),
    "cold_start": ("First calls in a fresh process", cold_start),
    "comfy": ("A sampling run in ComfyUI", iterations),
    "ops": ("Ops, next to the hardware's limit", percent_of_peak),
}


def main() -> None:
    """Draw all that a folder has the rows for."""
    for path in sorted(folder_of("plot", __doc__).glob("*.csv")):
        if picture := draw(path):
            print(f"drew {picture.name}")


if __name__ == "__main__":
    main()
