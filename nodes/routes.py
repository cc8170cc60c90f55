"""``GET /fast_compile/report``: the report of every compiled model, as JSON.

``?name=SD15`` leaves out the others, and ``?format=text`` gives what the report's text says of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

ROUTE = "/fast_compile/report"


def add_routes() -> None:
    """Add the route to ComfyUI's server. Without a server (ComfyUI as a library), or a second time, there is nothing to do."""
    from ..sfast_core.hosts.comfy.events import server

    found = server()
    if found is None or any(getattr(route, "path", None) == ROUTE for route in found.routes):
        return
    from aiohttp import web

    @found.routes.get(ROUTE)
    async def report(request: Any) -> web.Response:
        # Not in the server's own thread, which others wait for: a long report takes milliseconds. It waits for no call that is running.
        plain, names = request.query.get("format") == "text", request.query.getall("name", [])
        text = await asyncio.get_running_loop().run_in_executor(None, report_text, plain, names)
        return web.Response(text=text, content_type="text/plain" if plain else "application/json")


def report_text(plain: bool = False, names: Sequence[str] = ()) -> str:
    """The report as JSON, or to read, taken while another thread may be sampling. ``names``: of the models; none, for all of them."""
    from ..sfast_core.hosts import comfy
    from ..sfast_core.reporting.report import read_while_counting

    def read() -> str:
        found = comfy.report()
        if names:
            found.modules = [module for module in found.modules if module.name in names]
        return found.text() if plain else json.dumps(found.as_dict())

    return read_while_counting(read)
