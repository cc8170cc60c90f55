"""Rows are read and written as they are."""

from __future__ import annotations

from pathlib import Path

from benchmarks.tables import markdown, read


def test_a_table_has_a_cell_for_each_value() -> None:
    lines = markdown(["model", "ms"], [["SDXL", 26.0], ["", 3]]).splitlines()
    assert lines == ["| model | ms |", "|---|---|", "| SDXL | 26.0 |", "|  | 3 |"]


def test_rows_are_read_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('model,shape\nSDXL,"1, 4"\n', "utf-8")
    assert read(tmp_path / "a.csv") == [{"model": "SDXL", "shape": "1, 4"}]
