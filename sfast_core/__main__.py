"""``python -m sfast_core doctor``, ``python -m sfast_core build`` and ``python -m sfast_core report FILE``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .reporting.terminal import Say, exit_code, printer
from .version import VERSION

_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. Without one, show the help."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.run is None:
        parser.print_help()
        return 2
    say = printer()
    return exit_code(lambda: options.run(options, say))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sfast_core",
        description="Fast Compile from the command line.",
        epilog="Many pictures on many GPUs: python -m sfast_core.farm --help",
    )
    parser.add_argument("--version", action="version", version=f"fast compile {VERSION}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    doctor = commands.add_parser(
        "doctor",
        help="what is installed, what works here, and how to fix what doesn't",
        description=(
            "Looks at PyTorch, the GPU, the optional libraries and the cache, and runs each kernel once where there is"
            " a GPU (the first time they are compiled: seconds). Exit code: 0 when the fastest way is open, 1 when"
            " something stands in its way."
        ),
    )
    doctor.add_argument(
        "--clear-cache",
        action="store_true",
        help="first delete what was kept about which kernel is fastest; it is measured again when needed",
    )
    doctor.add_argument(
        "--json", action="store_true", help="as JSON: findings with state, name, text and mend, and how many problems"
    )
    doctor.set_defaults(run=_doctor)
    build = commands.add_parser(
        "build",
        help="build the CUDA extension",
        description=(
            "Builds the CUDA extension with nvcc for the GPUs that are there, once; install.py does the same. Without"
            " it kernels in Triton and PyTorch's own are taken. Exit code: 1 when it can't be built."
        ),
    )
    build.set_defaults(run=_build)
    report = commands.add_parser(
        "report",
        help="show a saved report",
        description=(
            "Shows a report saved from GET /fast_compile/report (ComfyUI, A1111, Forge). Exit code: 2 when it can't be"
            " read."
        ),
    )
    report.add_argument("file", metavar="FILE", help="the JSON file; - reads standard input")
    report.set_defaults(run=_report)
    return parser


def _in_the_way() -> dict[str, Any] | None:
    """What is missing before anything can be looked at, as a finding; None where nothing is."""
    try:
        import torch  # noqa: F401
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        text = (
            f"{sys.executable} has no PyTorch"
            if missing
            else f"PyTorch can't be loaded: {str(error).partition(chr(10))[0]}"
        )
        return {
            "state": "problem",
            "name": "torch",
            "text": text,
            "mend": "run this with the host's own Python, or install PyTorch (pytorch.org, Get Started)",
        }
    return None


def _findings() -> Iterator[dict[str, Any]]:
    """What the doctor finds, as plain data."""
    missing = _in_the_way()
    if missing is not None:
        yield missing
        return
    from .doctor import examine

    yield from map(asdict, examine())


def _doctor(options: argparse.Namespace, say: Say) -> int:
    if options.clear_cache and _in_the_way() is None:
        from .doctor.cache import clear_cache

        try:
            files, size = clear_cache()
        except OSError as error:
            say(f"the cache can't be cleared: {error}", "bold red")
            return 1
        if not options.json:
            say(f"cache cleared: {files} files, {size / 1024:.0f} KB", "")
    found, problems = [], 0
    for finding in _findings():
        problems += finding["state"] == "problem"
        found.append(finding)
        if options.json:
            continue
        say(f"{finding['state']:8}{finding['name']}: {finding['text']}", _STYLES[finding["state"]])
        if finding["mend"] and finding["state"] != "ok":
            say(f"{'':8}-> {finding['mend']}", "")
    if options.json:
        print(json.dumps({"findings": found, "problems": problems}, indent=2))
        return 1 if problems else 0
    if problems:
        count = f"{problems} problem{'s' if problems > 1 else ''}"
        say(f"The fastest way isn't open: {count}. What can't be accelerated runs as it did before.", "bold")
    else:
        say("The fastest way is open.", "bold green")
    return 1 if problems else 0


def _build(options: argparse.Namespace, say: Say) -> int:
    from .native.build import ensure

    outcome = ensure(lambda line: say(line, ""), again=True)
    if outcome.library is None:
        say(f"the CUDA extension isn't built: {outcome.reason}", "bold red")
        return 1
    say(f"the CUDA extension is {'built' if outcome.built else 'there'}: {outcome.library}", "bold green")
    return 0


def _report(options: argparse.Namespace, say: Say) -> int:
    from .reporting.saved import read_report, report_from

    try:
        report = report_from(json.load(sys.stdin)) if options.file == "-" else read_report(Path(options.file))
        text = report.text()
    except OSError as error:
        print(f"{options.file}: {error.strerror or error}", file=sys.stderr)
        return 2
    except (ValueError, TypeError, AttributeError) as error:
        print(f"{options.file}: not a report of Fast Compile: {error}", file=sys.stderr)
        return 2
    for line in text.splitlines():
        say(
            line,
            (
                "bold"
                if not line.startswith(" ")
                else "yellow"
                if line.strip().startswith(("ran as before", "no graph"))
                else ""
            ),
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
