"""The nodes as ComfyUI sees them, and what loading the pack does."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import comfy.ops
import torch
from driver import (
    PACK,
    ROOT,
    CompileConfig,
    assert_close,
    assert_fused,
    calls,
    fast_compile,
    load,
    load_pack,
    report_of,
    sample,
)

ROUTES = importlib.import_module(".nodes.routes", PACK.__name__)


def _nodes(pack: Any = PACK) -> dict[str, Any]:
    async def nodes() -> list[Any]:
        listed: list[Any] = await (await pack.comfy_entrypoint()).get_node_list()
        return listed

    return {kind.GET_SCHEMA().node_id: kind for kind in asyncio.run(nodes())}


def scenario_every_input_is_explained_and_taken() -> None:
    """What is promised to saved workflows is held by ``test_server.py``."""
    nodes = _nodes()
    for kind in nodes.values():
        schema = kind.GET_SCHEMA()
        assert schema.description and all(item.tooltip for item in schema.inputs)
        names = set(inspect.signature(kind.execute).parameters)
        assert names == {item.id for item in schema.inputs}


def scenario_the_node_at_work() -> None:
    apply = _nodes()["ApplyFastCompile"].execute
    model = load("sd3")
    plain = sample(model)
    assert apply(model, enabled=False).result[0] is model
    fast = apply(model).result[0]
    sample(fast)
    assert_close(sample(fast), plain)
    assert_fused(model)
    assert report_of(model).settings == {name: getattr(CompileConfig(), name) for name in CompileConfig.names()}
    slower = apply(model, cuda_graphs=False).result[0]
    sample(slower)
    assert report_of(model).settings["cuda_graphs"] is False


def scenario_the_settings_at_work() -> None:
    nodes = _nodes()
    settings, apply = nodes["FastCompileSettings"].execute, nodes["ApplyFastCompile"].execute
    assert settings().result[0] == CompileConfig(), "the defaults aren't what happens without the node"
    chosen = settings(512, 3, False, False, " fuse_attention, pack_qkv,fuse_attention,").result[0]
    expected = {"graph_budget_bytes": 512 * 2**20, "capture_after": 3, "adopt_weights": False, "measure": False}
    assert chosen == CompileConfig(**expected, disabled_passes=("fuse_attention", "pack_qkv"))
    model = load("sd3")
    plain, fast = sample(model), apply(model, settings=chosen).result[0]
    sample(fast)
    assert_close(sample(fast), plain)
    (signature,) = report_of(model).signatures
    assert "fuse_attention" not in signature.passes and "fuse_add_layer_norm" in signature.passes
    assert report_of(model).adopted_bytes == 0
    before = calls(model)
    sample(fast)
    assert_fused(model, before)


def scenario_wrong_settings_are_named() -> None:
    nodes = _nodes()
    settings, apply = nodes["FastCompileSettings"], nodes["ApplyFastCompile"].execute
    wrong: list[tuple[dict[str, Any], str]] = [
        (
            {"disabled_rewrites": "fuse_atention"},
            "disabled_rewrites: there is no rewrite of such a name: got fuse_atention",
        ),
        ({"graph_memory_mb": -1}, "graph_memory_mb"),
        ({"capture_after": 1}, "capture_after"),
    ]
    for inputs, message in wrong:
        try:
            settings.execute(**inputs)
        except ValueError as error:
            assert message in str(error)
        else:
            raise AssertionError(f"{inputs} were taken")
    assert "fuse_attention" in settings.validate_inputs("fuse_atention") and settings.validate_inputs("") is True
    assert settings.validate_inputs("fuse_geglu, eight_bits") is True, "a former name, and one of a quality below exact"
    assert settings.validate_inputs() is True, "an input that comes from another node is looked at when it is there"
    for model, chosen, name in ((load("sd3"), {"capture_after": 2}, "settings"), (None, None, "model")):
        try:
            apply(model, settings=chosen)
        except TypeError as error:
            assert name in str(error)
        else:
            raise AssertionError(f"{name} was taken")


def scenario_the_report_as_json() -> None:
    model = load("sd3")
    fast = fast_compile.apply(model)
    sample(fast), sample(fast)
    report = json.loads(ROUTES.report_text())
    assert report["versions"]["torch"] == torch.__version__
    (module,) = report["modules"]
    assert module["name"] == "SD3" and module["calls"] == {"traced": 1, "fused": 3} and module["device"] == "cpu"
    assert (
        module["signatures"][0]["passes"]["fuse_attention"] == 2
        and module["graph_bytes"] == 0 < module["adopted_bytes"]
    )


def scenario_each_route_is_added_once() -> None:
    """Twice the same path, from two copies of the pack, would keep the server from starting."""
    from types import SimpleNamespace
    from unittest.mock import patch

    from aiohttp import web

    routes = web.RouteTableDef()
    server = SimpleNamespace(PromptServer=SimpleNamespace(instance=SimpleNamespace(routes=routes)))
    with patch.dict(sys.modules, {"server": server}):
        _nodes(), _nodes(load_pack("fast_compile_again"))
    paths = [route.path for route in routes]
    assert "/fast_compile/report" in paths and len(set(paths)) == len(paths), paths
    web.Application().add_routes(routes)


def scenario_loading_the_pack_changes_nothing() -> None:
    """In a fresh process: no host module is touched, no thread starts,
    no kernel library and no compiler is imported.
    """
    program = """
import json, os, sys, threading, types
sys.path.insert(0, os.environ["COMFYUI_PATH"])
import comfy.options
from comfy.cli_args import args
args.cpu = True
import torch, comfy.ops, comfy.model_management, comfy.model_patcher, comfy.model_base, comfy.samplers, comfy_api.latest
def state():
    names = [name for name in sys.modules if name.split(".")[0] in ("torch", "comfy", "comfy_api")]
    found = {}
    for name in names:
        for key, value in vars(sys.modules[name]).items():
            if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)):
                found[name, key] = id(value)
                if isinstance(value, type) and str(getattr(value, "__module__", "")).split(".")[0] == "comfy":
                    found.update({(name, key, part): id(item) for part, item in vars(value).items()})
    return found
before, modules, threads = state(), set(sys.modules), threading.active_count()
sys.path.insert(0, os.environ["TESTS"])
import importlib.util
spec = importlib.util.spec_from_file_location("pack-x", os.path.join(os.environ["ROOT"], "__init__.py"), submodule_search_locations=[os.environ["ROOT"]])
pack = importlib.util.module_from_spec(spec)
sys.modules["pack-x"] = pack
spec.loader.exec_module(pack)
import asyncio
async def nodes():
    return await (await pack.comfy_entrypoint()).get_node_list()
kinds = asyncio.run(nodes())
after = state()
print(json.dumps({
    "nodes": len(kinds),
    "changed": [str(key) for key in before if after.get(key) != before[key]],
    "imported": sorted(name for name in set(sys.modules) - modules if not name.startswith(("pack-x", "comfy_api"))),
    "threads": threading.active_count() - threads,
}))
"""
    environment = {**os.environ, "ROOT": str(ROOT), "TESTS": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["nodes"] == len(_nodes()) and found["threads"] == 0 and found["changed"] == [], found
    heavy = (
        "triton",
        "diffusers",
        "transformers",
        "cudnn",
        "torch._inductor",
        "torch._dynamo",
        "xformers",
        "numba",
        "aiohttp",
    )
    assert not [name for name in found["imported"] if name.startswith(heavy)], found["imported"]
    assert comfy.ops.cast_bias_weight.__module__ == "comfy.ops"
