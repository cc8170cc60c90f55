"""``python -m random_workflows FIRST LAST``: the sessions of these seeds, ``LAST`` left out.

``--queues N`` in each (4); ``--family NAME``: all of this one; ``--show``: each queue; ``--more FILE.py``: a file that
adds kinds of nodes to ``random_workflows.nodes.KINDS``, such as those of other packs. Writes a JSON line for each
session; the exit status says whether one failed or was far.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import runpy
import sys
import time
from collections import Counter
from typing import Any


def session(seed: int, options: Any) -> dict[str, Any]:
    """What became of a session, and of each of its queues that was of note."""
    import driver

    from random_workflows.session import run

    start, notes, verdicts, calls, worst, name = (
        time.perf_counter(),
        list[str](),
        Counter[str](),
        Counter[str](),
        0.0,
        "",
    )
    for number, (subject, workflow, outcome) in enumerate(run(seed, options.queues, options.family)):
        name, worst = str(subject), max(worst, outcome.apart)
        verdicts[outcome.verdict] += 1
        calls += outcome.calls
        said = f"{number} {outcome.verdict} {outcome.apart:.1e} ({outcome.moves:.1e}) {dict(outcome.calls)} {workflow}"
        if options.show or outcome.verdict in ("FAR", "FAILED", "rounding"):
            notes += [said, outcome.why] if outcome.why else [said]
    driver.comfy.model_management.unload_all_models()
    gc.collect()
    return {
        **{"seed": seed, "model": name, "seconds": round(time.perf_counter() - start, 1), "verdicts": dict(verdicts)},
        **{"worst": worst, "calls": dict(calls), "notes": notes},
    }


def main() -> int:
    """Run the sessions that are asked for."""
    parser = argparse.ArgumentParser(prog="random_workflows")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--family", default="")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--more", default="")
    options = parser.parse_args()
    sys.path.insert(0, ".")
    import driver  # noqa: F401  ComfyUI, on the CPU

    logging.getLogger().setLevel(logging.ERROR)
    if options.more:
        runpy.run_path(options.more)
    bad = 0
    for seed in range(options.first, options.last):
        found = session(seed, options)
        bad += any(found["verdicts"].get(verdict) for verdict in ("FAR", "FAILED"))
        print("\n" + json.dumps(found), flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
