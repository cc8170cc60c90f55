"""``python -m benchmarks.quantised_products [PART ...]``: each part in a process of its own, within a time limit; CSV files in $OUT, a summary here."""

from __future__ import annotations

import csv
import importlib
import subprocess
import sys
import time
from collections import defaultdict

from . import by_cuda
from .timing import folder

PARTS = {"cuda": ("by_cuda", 240), "libraries": ("libraries", 150), "quantising": ("quantising", 200), "triton": ("by_triton", 200)}


def main(chosen: list[str]) -> None:
    """Run the parts that are named, or all."""
    if chosen and chosen[0] == "--in-process":
        importlib.import_module(f".{PARTS[chosen[1]][0]}", __package__).run()
        return
    parts = chosen or list(PARTS)
    build = by_cuda.build() if "cuda" in parts else None
    for part in sorted(parts, key=lambda name: name == "cuda"):  # nvcc has until then
        if part == "cuda" and build is not None:
            build.wait(timeout=180)
        begin = time.perf_counter()
        try:
            code = subprocess.run([sys.executable, "-m", __package__ or "", "--in-process", part], timeout=PARTS[part][1], check=False).returncode
        except subprocess.TimeoutExpired:
            code = -1
        print(f"{part}: {'ended with ' + str(code) if code else 'done'} in {time.perf_counter() - begin:.0f} s", flush=True)
    summarise(parts)


def summarise(parts: list[str]) -> None:
    """The best of each part at each shape, a line each."""
    found: dict[tuple[str, str, str], list[dict[str, str]]] = defaultdict(list)
    notes: dict[str, int] = defaultdict(int)
    for part in parts:
        path = folder() / f"products-{part}.csv"
        if not path.exists():
            continue
        for row in csv.DictReader(path.open()):
            if float(row["us"]) > 0:
                what = row["impl"].rsplit(", QuantiseTile", 1)[0] if part == "quantising" else ""
                found[(row["shape"] + (f" {what}" if what else ""), row["kind"], part)].append(row)
            else:
                notes[f"{part} {row['kind']} {row['impl'].rsplit(' ', 1)[0]}: {row['note']}"] += 1
    lines = []
    for (shape, kind, part), rows in sorted(found.items(), key=lambda item: (item[0][2] == "quantising", item[0][0], item[0][1])):
        row = min(rows, key=lambda row: float(row["us"]))
        rate = f"{float(row['gbps']):.0f}GB/s" if part == "quantising" else f"{float(row['tflops']):.0f}T"
        lines.append(f"{shape}|{kind}|{part}|{row['impl'][-40:]}|{float(row['us']):.1f}us|{rate}|{row['error']}|{row['kernel_error']}|{row['note']}")
    (folder() / "products-summary.txt").write_text("\n".join(lines))
    print(*(line for line in lines if "|quantising|" not in line), sep="\n")
    for note, count in sorted(notes.items(), key=lambda item: -item[1])[:20]:
        print(count, "x", note)


if __name__ == "__main__":
    main(sys.argv[1:])
