"""Tables and plots get into the pages by their marks, and no plot outlives its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import interleaved, machine, publish

FACTS = {"gpu": "A GPU", "date": "2026-01-01"}


def project(root: Path) -> Path:
    """A project with its pages and no figures."""
    (root / "docs").mkdir(parents=True)
    (root / "README.md").write_text("before\n<!-- unet -->\nold\n<!-- /unet -->\nafter\n", "utf-8")
    for page in ("compatibility", "scaling", "quality", "several-gpus"):
        (root / "docs" / f"{page}.md").write_text("nothing measured\n", "utf-8")
    (root / "docs" / "performance.md").write_text(
        "<!-- unet -->\n<!-- /unet -->\n<!-- memory -->\nkept\n<!-- /memory -->\n", "utf-8"
    )
    return root


def run(folder: Path, ms: float) -> Path:
    """A run's folder."""
    machine.write(folder, "unet", [interleaved.Row("SDXL", "float16", "ours", ms=ms)], f"table of {ms}", FACTS)
    return folder


def test_both_pages_show_the_table_and_the_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    root, folder = project(tmp_path / "project"), run(tmp_path / "run", 28.4)
    (folder / "unet.png").unlink()
    assert publish.publish(folder, root) == ["unet"]
    measured = "Measured on gpu A GPU, date 2026-01-01."
    assert (root / "README.md").read_text("utf-8") == (
        f"before\n<!-- unet -->\ntable of 28.4\n\n{measured}\n\n![One UNet forward](docs/measured/unet.png)\n<!-- /unet -->\nafter\n"
    )
    page = (root / "docs" / "performance.md").read_text("utf-8")
    assert "![One UNet forward](measured/unet.png)\n<!-- /unet -->" in page and "<!-- memory -->\nkept\n" in page
    assert (root / "docs" / "measured" / "unet.png").exists()
    assert publish.publish(root / "docs" / "measured", root) == ["unet"], "what is published may be published again"
    assert (root / "docs" / "performance.md").read_text("utf-8") == page


def test_a_plot_of_other_rows_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, folder = project(tmp_path / "project"), run(tmp_path / "run", 28.4)
    (folder / "unet.png").write_bytes(b"the plot of the first run")
    publish.publish(folder, root)
    assert "unet.png" in (root / "README.md").read_text("utf-8")
    monkeypatch.setattr(publish, "draw", lambda path: None)  # as without matplotlib
    second = run(tmp_path / "second", 27.0)
    (second / "unet.png").unlink(missing_ok=True)
    publish.publish(second, root)
    assert not (root / "docs" / "measured" / "unet.png").exists()
    text = (root / "README.md").read_text("utf-8")
    assert "table of 27.0" in text and "unet.png" not in text
