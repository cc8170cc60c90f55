"""``GET /fast_compile/report``: the report of every compiled model, as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

ROUTE = "/fast_compile/report"


def add_routes() -> None:
    """Add the route to ComfyUI's server. Without a server (ComfyUI as a library), or a second time, there is nothing to do."""
    server = getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
    if server is None or any(getattr(route, "path", None) == ROUTE for route in server.routes):
        return
    from aiohttp import web

    @server.routes.get(ROUTE)
    async def report(_: Any) -> web.Response:
        # Not in the server's own thread: the report waits for a model that is being traced.
        text = await asyncio.get_running_loop().run_in_executor(None, report_text)
        return web.Response(text=text, content_type="application/json")


def report_text() -> str:
    """The report as JSON, taken while another thread may be sampling."""
    from ..sfast_core.hosts import comfy
    from ..sfast_core.report import read_while_counting

    return read_while_counting(lambda: json.dumps(comfy.report().as_dict()))
