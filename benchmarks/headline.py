"""``python -m benchmarks.headline``: README's short table, from docs/measured, so that no figure is written by hand."""

from __future__ import annotations

from pathlib import Path

from .publish import ROOT, fill
from .tables import markdown, read

PAGE = ROOT / "README.md"
FORMATS = {"bf16": "16 bits", "int8": "int8", "fp8": "float8", "q4_k": "GGUF Q4_K"}


def _cell(before: str, after: str) -> str:
    return f"{float(before):.1f} → {float(after):.1f}, {float(before) / float(after):.1f} x"


def table() -> str:
    """A row a model: milliseconds of a step before and after, by the checkpoint's format."""
    unets, quantised = (read(ROOT / "docs" / "measured" / f"{name}.csv") for name in ("unet", "quantised"))
    rows = []
    for model in dict.fromkeys(row["model"] for row in unets):
        ms = {row["provider"]: row["ms"] for row in unets if row["model"] == model}
        rows.append([f"{model}, two prompts", _cell(ms["eager"], ms["ours"]), *[""] * (len(FORMATS) - 1)])
    for model in dict.fromkeys(row["model"] for row in quantised):
        by_format = {
            (row["format"], row["variant"]): row["step_ms"]
            for row in quantised
            if row["model"] == model and row["loras"] == "0"
        }
        cells = (
            _cell(by_format[name, "comfyui"], by_format[name, "ours"]) if (name, "ours") in by_format else ""
            for name in FORMATS
        )
        rows.append([model, *cells])
    about = quantised[0]
    where = f"Measured on one {about['gpu']}, PyTorch {about['torch']}, {unets[0]['date']} and {about['date']}."
    return f"{markdown(['milliseconds a step', *FORMATS.values()], rows)}\n\n{where}"


def page(text: str) -> str:
    """The page with the table as it is now."""
    return fill(text, "headline", table())


def main(path: Path = PAGE) -> None:
    """Write it."""
    path.write_text(page(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
