"""Stands in for ComfyUI where a test is about the farm: the same options and HTTP API, and files whose bytes follow
from the prompt alone.

Nodes: those of the tests' workflow, and ``Fail``, ``Crash`` (the process ends), ``Sleep`` (``seconds``), ``Escape``
(says it saved elsewhere).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KNOWN = {
    "CheckpointLoaderSimple",
    "EmptyLatentImage",
    "KSampler",
    "SaveImage",
    "LoraLoaderModelOnly",
    "Fail",
    "Crash",
    "Sleep",
    "Escape",
}


class Fake:
    """Its state. Like ComfyUI it doesn't save again what it has saved for the same prompt,
    until it is told to forget.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self.history: dict[str, Any] = {}
        self.saved: dict[str, Any] = {}
        self.loaded: set[str] = set()

    def queue(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        unknown = [key for key, node in body["prompt"].items() if node["class_type"] not in KNOWN]
        if unknown:
            errors = {"class_type": "x", "errors": [{"message": "not installed", "details": f"node {unknown[0]}"}]}
            return 400, {"error": {"message": "Cannot execute", "details": ""}, "node_errors": {unknown[0]: errors}}
        identity = str(uuid.uuid4())
        threading.Thread(target=self.run, args=(identity, body), daemon=True).start()
        return 200, {"prompt_id": identity}

    def run(self, identity: str, body: dict[str, Any]) -> None:
        prompt = body["prompt"]
        status: dict[str, Any] = {"status_str": "success", "messages": []}
        text = json.dumps(prompt)
        outputs = self.saved.get(text, {})
        for key, node in prompt.items() if not outputs else ():
            kind, inputs = node["class_type"], node.get("inputs", {})
            if kind == "CheckpointLoaderSimple" and inputs["ckpt_name"] not in self.loaded:
                self.loaded.add(inputs["ckpt_name"])
                time.sleep(0.1)
            if kind == "Sleep":
                time.sleep(inputs["seconds"])
            if kind == "Crash":
                print("about to crash", flush=True)
                os._exit(11)
            if kind == "Fail":
                said = {
                    "node_id": key,
                    "node_type": kind,
                    "exception_type": "RuntimeError",
                    "exception_message": "no such luck",
                }
                status = {"status_str": "error", "messages": [["execution_error", said]]}
            if kind == "Escape":
                outputs[key] = {"images": [{"filename": "../../secret.png", "subfolder": "", "type": "output"}]}
            if kind == "SaveImage":
                name = f"{inputs['filename_prefix']}_{len(list(self.output.iterdir())):05}_.png"
                extra = json.dumps(body.get("extra_data", {}).get("extra_pnginfo", {}))
                (self.output / name).write_bytes(
                    b"picture " + hashlib.sha256(text.encode()).hexdigest().encode() + text.encode() + extra.encode()
                )
                outputs[key] = {"images": [{"filename": name, "subfolder": "", "type": "output"}], "animated": [False]}
        if status["status_str"] == "success":
            self.saved[text] = outputs
        self.history[identity] = {"status": status, "outputs": outputs}


class Handler(BaseHTTPRequestHandler):
    fake: Fake

    def do_GET(self) -> None:
        if self.path == "/system_stats":
            self.answer(200, {"devices": [{"name": "fake"}]})
        else:
            identity = self.path.rpartition("/")[2]
            self.answer(200, {identity: self.fake.history[identity]} if identity in self.fake.history else {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/prompt":
            self.answer(*self.fake.queue(body))
            return
        if self.path == "/free":
            self.fake.saved.clear()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def answer(self, code: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *values: Any) -> None:
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen")
    parser.add_argument("--port", type=int)
    parser.add_argument("--output-directory", type=Path)
    parser.add_argument("--broken", action="store_true")
    options, _ = parser.parse_known_args()
    if options.broken:
        raise SystemExit("a node pack is broken")
    Handler.fake = Fake(options.output_directory)
    ThreadingHTTPServer((options.listen, options.port), Handler).serve_forever()
