"""Runs the nodes around a compiled model in a real ComfyUI, used as a library, and prints as JSON what they said and
did.

In ComfyUI's Python, with ``COMFYUI_PATH``; ``test_nodes_gpu.py`` starts it. The model is SD1.5's with few blocks and
random weights. In the place of ComfyUI's server stands one that keeps the events that the nodes' badges would get.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SIZES = "256x256, 256x320 x2"
MODEL, PROMPT = "tiny", "p"


def find_modules(home: str) -> None:
    """ComfyUI's before ours: both have one that is named ``nodes``."""
    own = (ROOT, Path(__file__).resolve().parent)
    sys.path[:] = [home, *(entry for entry in sys.path if Path(entry or ".").resolve() not in own), str(ROOT)]


def load_pack(name: str) -> ModuleType:
    """The pack as ComfyUI loads it, under a folder's name."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Session:
    """A loaded model, the pack's nodes, and the events that they sent."""

    def __init__(self, device: Any) -> None:
        import comfy.sd

        self.models = importlib.import_module("benchmarks.comfy_models")
        pack = load_pack("fast-compile_gpu")
        self.fast_compile = importlib.import_module(".sfast_core.hosts.comfy", pack.__name__)
        entry = asyncio.run(pack.comfy_entrypoint())
        self.nodes = {kind.GET_SCHEMA().node_id: kind for kind in asyncio.run(entry.get_node_list())}
        self.events: list[dict[str, Any]] = []
        sys.modules["server"] = SimpleNamespace(PromptServer=SimpleNamespace(instance=self))  # type: ignore[assignment]
        weights = self.models.checkpoint(MODEL, device)
        self.model = comfy.sd.load_state_dict_guess_config(weights, output_vae=False, output_clip=False)[0]
        self.prompts = {"positive": self.models.conditioning(MODEL, 1), "negative": self.models.conditioning(MODEL, 2)}

    def send_sync(self, event: str, data: dict[str, Any], client: Any = None) -> None:
        """As the server's."""
        self.events.append(json.loads(json.dumps(data)))  # as it would go out

    def execute(self, node: str, number: str, **inputs: Any) -> Any:
        """Run a node as the one of this number in a prompt."""
        from comfy_execution.utils import CurrentNodeContext

        with CurrentNodeContext(PROMPT, number):
            return self.nodes[node].execute(**inputs)

    def sample(self, model: Any, width: int = 256, height: int = 256, batch: int = 1) -> Any:
        """What the node KSampler gives, on the CPU."""
        import nodes

        latent = nodes.EmptyLatentImage().generate(width, height, batch)[0]
        options = {"seed": 3, "steps": 6, "cfg": 7.0, "sampler_name": "euler", "scheduler": "normal", **self.prompts}
        return nodes.KSampler().sample(model=model, latent_image=latent, **options)[0]["samples"].float().cpu()

    def report(self) -> dict[str, Any]:
        """The one compiled model's."""
        (module,) = self.fast_compile.report().as_dict()["modules"]
        return dict(module)


def shown(output: Any) -> str:
    """What a node shows on itself."""
    return str(output.ui.as_dict()["text"][0])


def facts(session: Session, free_bytes: Any) -> dict[str, Any]:
    """One workflow after the other, as a user would queue them. ``free_bytes``: of the device."""
    found: dict[str, Any] = {"events": session.events}
    plain = session.sample(session.model)
    fast = session.execute("ApplyFastCompile", "8", model=session.model).result[0]

    found["warm_up"] = shown(
        session.execute("FastCompileWarmUp", "9", model=fast, sizes=SIZES, cfg=7.0, **session.prompts)
    )
    found["warmed"] = session.report()
    picture = session.sample(fast)
    found["sampled"] = session.report()
    found["distance"] = ((picture - plain).norm() / plain.norm()).item()
    found["warm_up_again"] = shown(
        session.execute("FastCompileWarmUp", "9", model=fast, sizes=SIZES, cfg=7.0, **session.prompts)
    )

    text, image = session.execute("FastCompileReport", "10", of=fast, after=picture).result
    found |= {"report": text, "report_picture": list(image.shape), "report_contrast": image.std().item()}

    sizes = {"width": 256, "height": 256, "batch_size": 1, "steps": 8, "cfg": 7.0, "rounds": 2}
    image, text = session.execute("FastCompileBenchmark", "11", model=fast, **sizes, **session.prompts).result
    found |= {"benchmark": text, "benchmark_picture": list(image.shape), "after_benchmark": session.report()}

    session.sample(fast)
    found["before_freeing"], found["free_before"] = session.report(), free_bytes()
    found["freed"] = shown(session.execute("FastCompileFreeMemory", "12", anything=picture))
    found["after_freeing"], found["free_after"] = session.report(), free_bytes()
    found["same_bits"] = bool((session.sample(fast) == picture).all())
    found["captured_again"] = session.report()
    return found


def main() -> None:
    """On the GPU."""
    find_modules(os.environ["COMFYUI_PATH"])
    import comfy.options  # noqa: F401  arguments stay unparsed
    import torch

    with torch.inference_mode():
        found = facts(Session(torch.device("cuda")), lambda: torch.cuda.mem_get_info()[0])
    print("\n" + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
