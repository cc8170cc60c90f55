"""Speaking to a head: the token, what is refused, and the command line without a farm."""

from __future__ import annotations

import importlib.util
import json
import os
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sfast_core.farm.__main__ import main
from sfast_core.farm.client import Client
from sfast_core.farm.desk import Desk
from sfast_core.farm.errors import FarmError
from sfast_core.farm.head import Head
from sfast_core.farm.home import Home
from sfast_core.farm.machine import PACK, Machine, packs, room
from sfast_core.farm.progress import follow
from sfast_core.farm.status_text import lines
from sfast_core.farm.store import Store
from tests.farm.pretend_fleet import PretendFleet


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def served(home: Home) -> Iterator[tuple[Head, PretendFleet, str]]:
    token, _ = home.tokens()
    store, fleet = Store(home.queue), PretendFleet(1)
    head = Head(store, fleet, home.path / "output", lambda text: None)
    desk = Desk(head, token, "127.0.0.1", 0, {"dashboard": None, "output": str(home.path / "output")})
    home.tell(address=f"127.0.0.1:{desk.port}")
    yield head, fleet, f"127.0.0.1:{desk.port}"
    desk.close()
    store.close()


def test_nothing_is_answered_without_the_token(
    served: tuple[Head, PretendFleet, str], home: Home, make_prompt: Any
) -> None:
    head, _, address = served
    for token in ("", "wrong", home.tokens()[1], "é"):
        with pytest.raises(FarmError, match="token is needed"):
            Client(address, token.encode("utf-8").decode("latin-1")).submit("fox", make_prompt(), "1", ".")
        with pytest.raises(FarmError, match="token is needed"):
            Client(address, token.encode("utf-8").decode("latin-1")).status()
    assert head.status()["jobs"]["waiting"] == 0
    if os.name != "nt":
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in (home.token, home.cluster_token))
    assert home.tokens() == home.tokens() and len(set(home.tokens())) == 2


def test_what_is_refused_is_said(served: tuple[Head, PretendFleet, str], home: Home, make_prompt: Any) -> None:
    client = Client(served[2], home.tokens()[0])
    for arguments, words in (
        (("fox", make_prompt(), "x", "."), "seeds"),
        (("fox", make_prompt(), "1", "/etc"), "stay inside"),
        (("fox", {"nodes": []}, "1", "."), "API"),
        (("fox", [], "1", "."), "no workflow"),
        ((3, make_prompt(), "1", "."), "have to be text"),
    ):
        with pytest.raises(FarmError, match=words):
            client.submit(*arguments)  # type: ignore[arg-type]
    request = urllib.request.Request(
        f"http://{served[2]}/submit", b"[" * 100_000, {"Authorization": f"Bearer {home.tokens()[0]}"}
    )
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(request, timeout=10)


def test_the_command_line(
    served: tuple[Head, PretendFleet, str], home: Home, make_prompt: Any, tmp_path: Path, capsys: Any
) -> None:
    head, fleet, _ = served
    file = tmp_path / "fox.json"
    file.write_text(json.dumps(make_prompt()))
    assert main(["submit", str(file), "--seeds", "0-2", "--out", "a", "--home", str(home.path)]) == 0
    assert "submission 1: 3 queued" in capsys.readouterr().out
    head.tick(0), fleet.ready(), head.tick(0), head.tick(0)
    fleet.finish(*fleet.given, kind="refused", reason="no such node", log="line")
    head.tick(0)
    assert main(["status", "--home", str(home.path)]) == 0
    said = capsys.readouterr().out
    assert (
        "0 done" in said and "1 set aside" in said and "no such node" in said and "Ray's dashboard: not there" in said
    )
    assert main(["stop", "--now", "--home", str(home.path)]) == 0 and head.status()["stopping"] == "now"
    file.write_text("{}")
    assert main(["submit", str(file), "--home", str(home.path)]) == 2 and "no workflow" in capsys.readouterr().err
    assert main(["submit", str(tmp_path / "none.json"), "--home", str(home.path)]) == 2


def test_where_there_is_no_farm(tmp_path: Path, capsys: Any) -> None:
    assert main(["status", "--home", str(tmp_path)]) == 2 and "no farm was started" in capsys.readouterr().err
    home = Home(tmp_path)
    home.tokens(), home.tell(address="127.0.0.1:1")
    assert main(["status", "--home", str(tmp_path)]) == 2 and "doesn't answer" in capsys.readouterr().err
    with home.held(), pytest.raises(FarmError, match="running in"), Home(tmp_path).held():
        pass


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="is about a machine without Ray")
def test_without_ray_it_says_what_to_install(tmp_path: Path, capsys: Any) -> None:
    assert main(["start", "--home", str(tmp_path)]) == 2 and 'pip install "ray[default]"' in capsys.readouterr().err
    assert (
        main(["join", "10.0.0.1:6379", "--token-file", "x"]) == 2
        and 'pip install "ray[default]"' in capsys.readouterr().err
    )


def test_what_a_machine_brings(tmp_path: Path) -> None:
    (tmp_path / "main.py").touch()
    settings = Machine(None, tmp_path, None, ["--cpu"]).settings(tmp_path / "w")
    assert settings["main"] == str(tmp_path / "main.py") and settings["packs"] == {"fast-compile": str(PACK)}
    (tmp_path / "custom_nodes").mkdir()
    (tmp_path / "custom_nodes" / "ours").symlink_to(PACK, target_is_directory=True)
    assert packs(tmp_path) == {}, "it is installed there"
    with pytest.raises(FarmError, match=r"no main\.py"):
        Machine(None, tmp_path / "w", None, []).settings(tmp_path)
    with pytest.raises(FarmError, match="--workers"):
        room(0)
    assert room(3) == 3


def test_how_far_it_is(capsys: Any) -> None:
    """Until nothing waits or runs."""
    steps = iter([(0, 3, 0), (1, 2, 0), (2, 0, 1)])

    def status() -> dict[str, Any]:
        done, waiting, aside = next(steps)
        return {"jobs": {"done": done, "waiting": waiting, "running": 0, "aside": aside}, "per_minute": 2.0}

    said: list[str] = []
    assert follow(status, lambda text, style: said.append(text), lambda seconds: None)["jobs"]["aside"] == 1
    assert said == ["0 of 3, 2 a minute", "3 of 3, 2 a minute, 1 set aside"]


def test_a_status_to_read() -> None:
    worker = {
        "name": "w-1",
        "machine": "abcdefghijk",
        "state": "busy",
        "done": 3,
        "busy": 0.5,
        "job": "fox_1",
        "gpu_percent": 97.0,
        "memory_mb": 2048.0,
    }
    status: dict[str, Any] = {
        "jobs": {"done": 1, "running": 1, "waiting": 2, "aside": 0}, "per_minute": 3.0, "held": "the disk is full", "stopping": None,
        "workers": [{**worker, "memory_total_mb": 81920.0}], "troubles": [{"machine": "m2", "reason": "broken"}],
        "delayed": [{"n": 2, "reason": "ended"}], "aside": [], "output": "/out", "dashboard": "http://127.0.0.1:8265",
    }  # fmt: skip
    text = "\n".join(line for line, _ in lines(status))
    for part in (
        "w-1 on abcdefgh: busy, 3 done, busy 50% of its time, GPU 97 %, 2.0 of 80.0 GiB, fox_1",
        "the disk is full",
        "m2: broken",
        "2 wait again",
    ):
        assert part in text, text


def test_without_a_command_it_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2 and "submit" in capsys.readouterr().out
