"""The simulated farm of ``benchmarks.farm``, at a small size."""

from __future__ import annotations

import csv
from pathlib import Path

from benchmarks.farm import main


def test_it_writes_what_it_simulated(tmp_path: Path) -> None:
    main(tmp_path, {2: 60.0})
    with (tmp_path / "farm.csv").open() as file:
        ours, plain = csv.DictReader(file)
    assert ours["gpus"] == plain["gpus"] == "2" and int(ours["jobs"]) == int(plain["jobs"]) > 100
    assert 0 < int(ours["loads"]) <= int(plain["loads"]) and 0 < float(ours["busy_efficiency"]) < 1
    text = (tmp_path / "farm.md").read_text()
    assert text.startswith("| GPUs |") and "Simulated, not measured" in text
