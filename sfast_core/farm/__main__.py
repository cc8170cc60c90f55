"""``python -m sfast_core.farm start|join|submit|status|stop``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..reporting.terminal import Say, exit_code, printer
from .client import Client
from .errors import FarmError
from .home import Home, default_home, read_token
from .machine import Machine
from .workflow import parsed

_TOKEN = "FAST_COMPILE_FARM_TOKEN"
_OPTIONS = "What stands behind a -- is given to each ComfyUI, such as -- --lowvram."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. Without one, show the help."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    end = given.index("--") if "--" in given else len(given)
    parser = _parser()
    options = parser.parse_args(given[:end])
    if options.run is None:
        parser.print_help()
        return 2
    options.comfyui_options = given[end + 1 :]
    say = printer()
    try:
        return exit_code(lambda: options.run(options, say))
    except FarmError as error:
        print(str(error), file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sfast_core.farm",
        description=(
            "Workflows of ComfyUI, queued once and run by as many workers as there are GPUs, on one machine or several."
        ),
    )
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_start(commands)
    _add_join(commands)
    _add_submit(commands)
    _add_status(commands)
    _add_stop(commands)
    return parser


def _add_start(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    start = commands.add_parser(
        "start",
        help="run a farm here: its queue, and a worker on each GPU",
        description=f"Runs a farm until it is stopped; started again it goes on where it was. Needs Ray. {_OPTIONS}",
    )
    start.set_defaults(run=_start)
    _add_home(start)
    start.add_argument(
        "--output", type=Path, metavar="DIR", help="the folder in which all results are (output in the farm's own)"
    )
    start.add_argument(
        "--listen",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="an address of this machine that others reach (127.0.0.1: nobody else)",
    )
    start.add_argument("--port", type=int, default=8199, help="for submit, status and stop (8199; 0: any)")
    start.add_argument("--ray-port", type=int, default=0, help="for machines that join (0: any)")
    start.add_argument(
        "--dashboard-port",
        type=int,
        default=8265,
        help="of Ray's dashboard, on this machine alone (8265; 0: no dashboard)",
    )
    start.add_argument(
        "--job-limit",
        type=float,
        default=3600.0,
        metavar="SECONDS",
        help="what takes longer is stopped, and tried twice more (3600)",
    )
    _add_machine(start)


def _add_join(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    join = commands.add_parser(
        "join",
        help="add this machine's GPUs to a farm",
        description=(
            "Runs workers for a farm elsewhere until either ends. Needs the same versions of Ray and Python as there."
            f" {_OPTIONS}"
        ),
    )
    join.set_defaults(run=_join)
    join.add_argument("address", metavar="ADDRESS", help="what start printed: host:port of the farm's Ray")
    join.add_argument(
        "--token-file", type=Path, required=True, metavar="FILE", help="a copy of the farm's cluster-token"
    )
    _add_machine(join)


def _add_submit(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    submit = commands.add_parser(
        "submit",
        help="queue a workflow",
        description=(
            "Queues a workflow that ComfyUI has exported for its API, once for each seed. What is queued or done"
            " already is left as it is, so that submitting again completes what is missing. Exit code with --wait: 1"
            " where something was set aside."
        ),
    )
    submit.set_defaults(run=_submit)
    submit.add_argument("workflow", type=Path, metavar="WORKFLOW.json", help="in ComfyUI: File > Export (API)")
    submit.add_argument(
        "--seeds",
        metavar="SEEDS",
        help="such as 0-99 or 1,5,10-12: into every input called seed or noise_seed (without: as it is, once)",
    )
    submit.add_argument("--out", default=".", metavar="DIR", help="a folder within the farm's output")
    submit.add_argument("--wait", action="store_true", help="show how far it is until it is done")
    _add_address(submit)


def _add_status(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    status = commands.add_parser(
        "status", help="show jobs, workers, and what was set aside", description="Shows a farm's state, once."
    )
    status.set_defaults(run=_status)
    status.add_argument("--json", action="store_true", help="as JSON")
    _add_address(status)


def _add_stop(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    stop = commands.add_parser(
        "stop",
        help="end a farm; its queue is kept",
        description="Ends a farm when what runs is done. Its queue is kept.",
    )
    stop.set_defaults(run=_stop)
    stop.add_argument("--now", action="store_true", help="at once: what runs is begun anew at the next start")
    _add_address(stop)


def _add_home(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--home",
        type=Path,
        default=default_home(),
        metavar="DIR",
        help=f"the farm's folder: queue and tokens ({default_home()})",
    )


def _add_address(parser: argparse.ArgumentParser) -> None:
    _add_home(parser)
    parser.add_argument("--address", metavar="HOST:PORT", help="of a farm on another machine (the one of --home)")
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help=f"its token, where it isn't in {_TOKEN} (the one of --home)"
    )


def _add_machine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--comfyui", type=Path, metavar="DIR", help="that workers run (the one in whose custom_nodes this pack is)"
    )
    parser.add_argument("--comfyui-python", metavar="PYTHON", help="that runs it (this one)")
    parser.add_argument("--workers", type=int, metavar="N", help="on this machine (one for each GPU)")


def _start(options: argparse.Namespace, say: Say) -> int:
    from .ray_fleet import require_ray
    from .running import Ports, start

    require_ray()
    home = Home(options.home)
    output = (options.output or home.path / "output").expanduser().resolve()
    ports = Ports(options.listen, options.port, options.ray_port, options.dashboard_port or None)
    return start(home, output, ports, _machine(options), options.job_limit, say)


def _join(options: argparse.Namespace, say: Say) -> int:
    from .ray_fleet import require_ray
    from .running import join

    require_ray()
    folder = Path(tempfile.mkdtemp(prefix="fast-compile-farm-"))
    return join(options.address, options.token_file.expanduser().resolve(), _machine(options), folder, say)


def _machine(options: argparse.Namespace) -> Machine:
    return Machine(options.workers, options.comfyui, options.comfyui_python, options.comfyui_options)


def _submit(options: argparse.Namespace, say: Say) -> int:
    from .progress import follow

    try:
        text = options.workflow.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FarmError(f"{options.workflow}: {error}") from None
    client = _client(options)
    found = client.submit(options.workflow.stem, parsed(text, str(options.workflow)), options.seeds, options.out)
    say(
        f"submission {found['batch']}: {found['queued']} queued, {found['known']} were queued already, {found['there']}"
        " are done already",
        "bold",
    )
    if not options.wait or not found["queued"]:
        return 0
    status = follow(lambda: client.status(found["batch"]), say)
    for aside in status["aside"]:
        say(f"set aside: {aside['name']}: {aside['reason']}", "bold red")
    return 1 if status["jobs"]["aside"] else 0


def _status(options: argparse.Namespace, say: Say) -> int:
    import json

    from .status_text import lines

    status = _client(options).status()
    if options.json:
        print(json.dumps(status, indent=1))
        return 0
    for text, style in lines(status):
        say(text, style)
    return 0


def _stop(options: argparse.Namespace, say: Say) -> int:
    _client(options).stop(options.now)
    say("the farm ends at once" if options.now else "the farm ends when what runs is done", "")
    return 0


def _client(options: argparse.Namespace) -> Client:
    """The farm that the options name, with its token: named, from the environment, or its home's."""
    home = Home(options.home)
    address = options.address or home.told()["address"]
    if options.token_file is not None:
        return Client(address, read_token(options.token_file))
    return Client(address, os.environ.get(_TOKEN) or read_token(home.token))


if __name__ == "__main__":
    sys.exit(main())
