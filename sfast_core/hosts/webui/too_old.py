"""Where PyTorch is too old: the log and the tab say so, and how to get another.

Nothing else of this package is imported.
"""

from __future__ import annotations

from typing import Any

TITLE = "Fast Compile"


def text(version: str) -> str:
    """What the tab says, in Markdown."""
    return f"""**Pictures are made as before**: Fast Compile needs PyTorch 2.6 or newer, and this webui runs {version}.

To get another, set the variable `TORCH_COMMAND` (in `webui-user.sh` or `webui-user.bat`) to the command that
[pytorch.org](https://pytorch.org/get-started/locally/) gives for your driver, such as

    pip install torch==2.6.0 torchvision==0.21.0 --index-url https://download.pytorch.org/whl/cu124

and start once with `--reinstall-torch`. An installed xformers has to be the one for that PyTorch; without it the webui
runs as well."""


def tell(version: str) -> None:
    """Print it in one line, and add the tab."""
    print(
        f"Fast Compile: pictures are made as before: it needs PyTorch 2.6 or newer, this is {version}. The tab"
        f" {TITLE!r} says how to get another."
    )
    from modules import script_callbacks

    def build() -> list[tuple[Any, str, str]]:
        import gradio as gr

        with gr.Blocks(analytics_enabled=False) as block:
            gr.Markdown(text(version))
        return [(block, TITLE, "fast_compile")]

    script_callbacks.on_ui_tabs(build)
