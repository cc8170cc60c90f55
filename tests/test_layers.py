"""Layers point one way: who imports whom is read from the sources, and importing the core is shown to do nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "sfast_core"
SOURCES = sorted(CORE.rglob("*.py"))
HOSTS = {
    "comfy",
    "comfy_api",
    "comfy_execution",
    "comfy_aimdo",
    "diffusers",
    "transformers",
    "peft",
    "accelerate",
    "modules",
    "folder_paths",
    "server",
}
KERNEL_LIBRARIES = {"triton", "cudnn", "xformers", "flash_attn"}


def imports(path: Path, lazy: bool = True) -> Iterator[tuple[str, str | None]]:
    """``(module, name)`` of each import in a file, relative ones made absolute; without ``lazy`` those at the top level alone."""
    tree = ast.parse(path.read_text("utf-8"))
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    nodes = ast.walk(tree) if lazy else iter(tree.body)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from ((module, alias.name) for alias in node.names)


def known_of_ours(path: Path) -> set[tuple[str, str]]:
    """The layer and the module of each import of ours, less the file's own layer: ``("ops", "ops.spec.Op")``."""
    own = layer(".".join(path.relative_to(ROOT).with_suffix("").parts))
    found = set()
    for module, name in imports(path):
        if name and module in {"sfast_core", *(f"sfast_core.{room}" for room in ROOMS)}:  # from .. import x
            module, name = f"{module}.{name}", None
        if module.startswith("sfast_core.") and layer(module) != own:
            found.add((layer(module), module.removeprefix("sfast_core.") + (f".{name}" if name else "")))
    return found


#: Folders of files by subject, not by layer: each file is a layer of its own.
ROOMS = {"machine", "programs", "quality", "reporting"}


def layer(module: str) -> str:
    """The folder below ``sfast_core``, or the file's name; in a room ``room.file``."""
    parts = module.split(".")
    if len(parts) > 2 and parts[1] in ROOMS:
        return ".".join(parts[1:3])
    return parts[1] if len(parts) > 1 else parts[0]


#: What each layer may know. Everything that exists has to be listed.
ALLOWED: dict[str, set[str]] = {
    "reporting.reason": set(),
    "reporting.reasons": {"reporting.reason"},
    "quality.levels": set(),
    "config": {"ops", "quality.levels", "rewrite"},
    "version": set(),
    "reporting.chinese": set(),
    "reporting.translated": {"reporting.chinese", "reporting.reason"},
    "reporting.signature_report": {"reporting.translated"},
    "reporting.report": {"reporting.reason", "reporting.signature_report", "reporting.translated", "version"},
    "reporting.saved": {"reporting.reason", "reporting.reasons", "reporting.report", "reporting.signature_report"},
    "reporting.terminal": set(),
    "machine.numerics": set(),
    "target": {"machine.numerics"},
    "machine.file_lock": set(),
    "machine.choices": {"machine.file_lock", "native", "target"},
    "native": set(),
    "ops": {"native", "machine.numerics", "target"},
    "machine.forks": set(),
    "machine.operator_mode": set(),
    "weights": {"machine.operator_mode", "ops", "reporting.reasons"},
    "capture": {"machine.forks", "reporting.reason", "reporting.reasons", "weights"},
    "rewrite": {"capture", "ops", "target", "weights"},
    "runtime": {"capture", "machine.choices", "machine.forks", "machine.operator_mode", "native", "reporting.reasons", "weights"},
    "programs.cutting": {"capture", "runtime"},
    "programs.jobs": {"machine.numerics", "ops", "rewrite", "runtime"},
    "lowering": {"sharding", "reporting.reporter", "programs.deployment", "capture", "machine.choices", "config", "programs.cutting", "programs.jobs", "machine.numerics", "ops", "quality.levels", "reporting.signature_report", "rewrite", "runtime", "quality.sensitivity", "target", "weights", "reporting.reasons"},
    "quality.probe": {"programs.proof", "capture", "ops", "rewrite", "runtime", "weights"},
    "quality.sensitivity": {"machine.choices", "ops", "quality.levels", "quality.probe", "rewrite", "runtime", "target", "weights"},
    "programs.proof": {"capture", "machine.numerics", "reporting.reasons"},
    "reporting.reporter": {"reporting.reason", "reporting.reasons", "reporting.report", "reporting.signature_report"},
    "programs.deployment": {"reporting.reporter", "runtime"},
    "programs.kept_copies": {"programs.deployment", "runtime", "weights"},
    "programs.copies_of_weights": {"programs.deployment", "runtime", "weights"},
    "programs.streams": {"programs.deployment", "programs.kept_copies", "capture", "reporting.signature_report", "runtime", "weights"},
    "graphed": {"programs.deployment", "capture", "config", "programs.copies_of_weights", "programs.proof", "reporting.signature_report", "runtime", "programs.streams", "weights", "reporting.reasons"},
    "programs.segmented": {"capture", "config", "graphed", "programs.proof", "reporting.reason", "reporting.reasons", "runtime", "weights"},
    "programs.sampling_history": set(),
    "programs.entries": {"capture", "graphed", "programs.sampling_history", "reporting.report", "reporting.signature_report", "runtime"},
    "programs.on_device": {"capture", "reporting.reason", "reporting.reasons", "reporting.report", "runtime", "programs.entries"},
    "quality.reuse": set(),
    "quality.reused": {"programs.deployment", "capture", "config", "graphed", "programs.proof", "reporting.report", "reporting.signature_report", "reporting.reporter", "quality.reuse", "runtime"},
    "programs.fusing": {"programs.deployment", "capture", "config", "graphed", "quality.levels", "reporting.reasons", "reporting.signature_report", "quality.reused", "rewrite", "runtime", "programs.proof", "programs.segmented", "quality.sensitivity", "programs.entries"},
    "sharding": {"capture", "ops", "rewrite"},
    "several": {"programs.deployment", "sharding", "capture", "config", "graphed", "programs.entries", "programs.on_device", "programs.proof", "quality.levels", "reporting.reason", "reporting.reasons", "reporting.report", "reporting.signature_report", "reporting.reporter", "runtime", "weights"},
    "programs.compiled_state": {"capture", "config", "machine.forks", "quality.sensitivity", "reporting.report", "reporting.reporter", "runtime", "programs.on_device", "programs.entries", "several"},
    "first_call": {"programs.deployment", "capture", "programs.compiled_state", "programs.entries", "programs.fusing", "programs.on_device", "reporting.reason", "reporting.reasons", "reporting.signature_report", "runtime", "several", "weights"},
    "engine": {"capture", "config", "first_call", "graphed", "lowering", "programs.compiled_state", "programs.entries", "programs.on_device", "programs.segmented", "reporting.reason", "reporting.reasons", "runtime", "several", "weights"},
    "machine.ahead": {"native", "ops", "runtime", "target"},
    "doctor": {"machine.choices", "native", "ops", "target"},
    "farm": {"machine.file_lock", "reporting.terminal"},
    "__main__": {"doctor", "native", "reporting.saved", "reporting.terminal", "version"},
    "state": {"capture", "engine", "reporting.reason", "reporting.reasons"},
    "libraries": {"capture", "ops", "weights"},
    "fast_forward": {"engine", "libraries", "state"},
    "compiled": {"machine.ahead", "config", "engine", "fast_forward", "libraries", "reporting.report"},
    "operators": {"capture", "ops", "target"},
    "__init__": {"compiled", "config", "hosts", "operators", "reporting.report", "version"},
    "hosts": {
        "machine.ahead", "capture", "compiled", "config", "engine", "fast_forward", "machine.forks", "machine.numerics", "libraries", "ops", "quality.levels", "reporting.reason", "reporting.reasons", "reporting.report", "reporting.signature_report", "reporting.reporter",
        "reporting.translated", "runtime", "state", "weights",
    },
}


REWRITE = CORE / "rewrite"
OPS = [folder.name for folder in (CORE / "ops").iterdir() if (folder / "reference.py").exists()]


def test_a_layer_knows_only_those_below_it() -> None:
    wrong, used = [], set()
    for path in SOURCES:
        own = layer(".".join(path.relative_to(ROOT).with_suffix("").parts))
        wrong += [f"{path.relative_to(CORE)} imports {module}" for other, module in known_of_ours(path) if other not in ALLOWED[own]]
        used |= {(own, other) for other, _ in known_of_ours(path)}
    assert wrong == []
    assert {(own, other) for own, others in ALLOWED.items() for other in others} <= used, "an arrow that nobody takes"


def test_a_rewrite_knows_of_an_op_its_meaning_and_what_an_op_is() -> None:
    """The meaning is the function that has the op's name."""
    allowed = {
        *(f"ops.{name}.{name}" for name in OPS),
        *(f"ops.{name}" for name in ("spec.Arguments", "spec.Op", "spec.Impl", "needs.FLOATS", "token_rows.of_each_token")),
    }
    known = {module for path in SOURCES if path.is_relative_to(REWRITE) for other, module in known_of_ours(path) if other == "ops"}
    assert "ops.attention.attention" in known and known <= allowed


def test_passes_do_not_know_one_another() -> None:
    """What several look for lies beside their folder: the graph, patterns, views, rotations in their spellings. It knows none of them."""
    who_may = {REWRITE / "__init__.py", REWRITE / "pipeline.py"}
    wrong = []
    for path in (path for path in SOURCES if path.is_relative_to(REWRITE) and path not in who_may):
        known = {module for module, _ in imports(path) if module.startswith("sfast_core.rewrite.passes.")}
        wrong += [f"{path.name} imports {name}" for name in known]
    assert wrong == []


def test_only_a_host_knows_its_host_and_only_when_it_is_used() -> None:
    wrong = []
    for path in SOURCES:
        part = path.relative_to(CORE).parts[0]
        at_import = {module.split(".")[0] for module, _ in imports(path, lazy=False)}
        refused = HOSTS & at_import
        if path.is_relative_to(CORE / "hosts" / "webui"):  # that host imports it while it loads the extension, and gives no later chance
            refused -= {"modules"}
        if part != "hosts":
            refused |= HOSTS & {module.split(".")[0] for module, _ in imports(path)}
        if path == CORE / "farm" / "repeatable.py":  # a worker's ComfyUI loads it, and nothing here does
            refused -= {"comfy"}
        if part != "ops":  # a kernel's own files are imported when an op asks for them
            refused |= KERNEL_LIBRARIES & at_import
        wrong += [f"{path.relative_to(CORE)} imports {name}" for name in sorted(refused)]
    assert wrong == []


def test_no_host_knows_another() -> None:
    """What several need lies beside their folders."""
    hosts = [path for path in (CORE / "hosts").iterdir() if path.is_dir() and path.name != "__pycache__"]
    wrong = []
    for path in (file for host in hosts for file in host.rglob("*.py")):
        others = {f"sfast_core.hosts.{host.name}" for host in hosts if host not in path.parents} | {"sfast_core.hosts.diffusers"}
        wrong += [f"{path.relative_to(CORE)} imports {module}" for module, _ in imports(path) if any(module.startswith(other) for other in others)]
    assert wrong == []


def test_no_file_is_too_long_for_one_subject() -> None:
    files = [path for folder in ("sfast_core", "nodes", "benchmarks", "tests") for path in (ROOT / folder).rglob("*.py")]
    files += (ROOT / "csrc").glob("*.[ch]*")
    assert [path.name for path in files if len(path.read_text("utf-8").splitlines()) > 400] == []


def test_ours_are_imported_relatively() -> None:
    """The package is loaded under different names."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert not any(name.split(".")[0] == "sfast_core" for name in names), path


IMPORT = """
import sys, threading
import torch
before, threads = set(sys.modules), threading.active_count()
import sfast_core
sfast_core.CompileConfig(), sfast_core.compile, sfast_core.uninstall, sfast_core.Report
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(new & set(%r)), threading.active_count() - threads, torch.cuda.is_initialized())
print("torch._dynamo" in sys.modules)
"""

FIRST_CALL = """
import sys
import torch
from sfast_core import CompileConfig, compile
from tests.models import UNet
with torch.no_grad():
    handle = compile(UNet(), CompileConfig(allow_cpu=True))
    handle(*UNet.inputs()), handle(*UNet.inputs())
assert handle.engine.report.calls == {"traced": 1, "fused": 1}, handle.report().text()
print([name for name in ("torch._dynamo", "triton", "diffusers", "comfy") if name in sys.modules])
"""


def run(code: str) -> list[str]:
    """The lines that a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_importing_the_core_does_nothing() -> None:
    libraries = sorted(HOSTS | KERNEL_LIBRARIES | {"platformdirs", "numpy", "safetensors"})
    assert run(IMPORT % libraries) == ["[] 0 False", "False"]


def test_a_first_call_imports_no_compiler() -> None:
    """``torch._dynamo`` takes longer to import than a UNet to trace, and keeps the callers' frames alive until the collector runs."""
    assert run(FIRST_CALL) == ["[]"]
