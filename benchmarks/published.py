"""``python -m benchmarks.published FOLDER``: what others published (published.csv) beside what was measured here.

Reads FOLDER's comfy.csv and controlnet.csv, as ``docs/measured`` has them, and writes FOLDER/published.md, which
``python -m benchmarks.publish FOLDER`` puts into the pages.
"""

from __future__ import annotations

from pathlib import Path

from .command import folder_of
from .tables import markdown, read

PUBLISHED = Path(__file__).with_suffix(".csv")
CONTROLNET = "SD1.5 with a ControlNet"
MODELS = ("SD1.5", "SDXL", CONTROLNET)
OURS = {"eager": "eager", "ours": "Fast Compile"}
_ALLOCATOR = "cudaMallocAsync"  # ComfyUI's own


def measured(folder: Path) -> dict[str, dict[str, float]]:
    """Steps per second by provider and model, sampling in ComfyUI; with a ControlNet of both forwards alone."""
    found: dict[str, dict[str, float]] = {provider: {} for provider in OURS}
    for row in read(folder / "comfy.csv"):
        if row["allocator"] == _ALLOCATOR and row["variant"] in found:
            found[row["variant"]][row["model"]] = int(row["steps"]) / float(row["sampling_s"])
    for row in read(folder / "controlnet.csv"):
        if row["provider"] in found:
            found[row["provider"]][CONTROLNET] = 1000 / float(row["ms"])
    return found


def table(folder: Path) -> str:
    """The Markdown."""
    published, here, machine = read(PUBLISHED), measured(folder), _machine(folder)
    rows = [
        [row["framework"], f"[published]({row['source']}), {row['gpu']}", *(row[model] for model in MODELS)]
        for row in published
    ]
    for provider, name in OURS.items():
        cells = [f"{here[provider][model]:.1f}" if model in here[provider] else "" for model in MODELS]
        rows.append([name, f"measured, {machine}", *cells])
    notes = (
        "Batch 1 with guidance, fp16, 512x512 and 1024x1024. Published: whole pipelines of diffusers. Measured:"
        " sampling in ComfyUI, and with a ControlNet "
    )
    return f"{markdown(['steps per second', '', *MODELS], rows)}\n\n{notes}one step of both models.\n"


def _machine(folder: Path) -> str:
    """Where and when what is shown of both tables was measured."""
    rows = [
        row
        for name in ("comfy", "controlnet")
        for row in read(folder / f"{name}.csv")
        if row.get("allocator", _ALLOCATOR) == _ALLOCATOR
    ]
    dates: dict[str, set[str]] = {}
    for row in rows:
        dates.setdefault(f"{row['gpu']}, PyTorch {row['torch']}", set()).add(row["date"])
    return " and ".join(f"{where}, {' and '.join(sorted(found))}" for where, found in dates.items())


def main() -> None:
    """Write the table."""
    folder = folder_of("published", __doc__)
    (folder / "published.md").write_text(table(folder), "utf-8")
    print(f"wrote {folder / 'published.md'}")


if __name__ == "__main__":
    main()
