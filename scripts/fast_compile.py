"""The entry for AUTOMATIC1111's webui and Forge, which load this file when the repository is in ``extensions/``.

ComfyUI doesn't see it.

The repository's folder is on ``sys.path`` only while this file is loaded, and top-level names are shared by all
extensions: everything that is needed is imported here and now, by the one name that is ours.
"""

import torch

if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6):
    from sfast_core.hosts.webui.entry import load

    FastCompileScript = load()
else:
    from sfast_core.hosts.webui.too_old import tell

    tell(torch.__version__)
