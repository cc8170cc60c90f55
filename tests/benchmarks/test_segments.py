"""The table of the benchmark of other nodes' patches."""

from __future__ import annotations

from benchmarks.segments import Row, table


def test_a_row() -> None:
    row = Row("SDXL", "FreeU_V2", 70.0, 35.0, 60.0, 24.0, 2.0, 0.8, 5, 4, 3.25, 1e-3)
    assert (
        table([row]).splitlines()[-1]
        == "| SDXL | FreeU_V2 | 70.00 | 35.00 | 2.00 | 2.50 | 80% | 5 | 4 | 3.2 s | 1.0e-03 |"
    )
