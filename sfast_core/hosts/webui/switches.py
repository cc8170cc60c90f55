"""The extension's switches: what each is called in the API, in the settings,
on the screen and in a picture's infotext.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...quality.levels import EXACT, QUALITIES

TITLE = "Fast Compile"
DONE = f"{TITLE} not exact"  #: the field of infotext that says what was done of what the quality allows


@dataclass(frozen=True)
class Switch:
    """One switch. All of them are shown in the accordions and in the tab, and are arguments of the API.

    Attributes:
        name: the argument's, and the end of the setting's.
        default: how it stands before anybody has touched it.
        label: what it is called on the screen.
        info: what it costs or does, in the settings.
        shown: its name in infotext and on an axis of the X/Y/Z plot.
        values: what it can be; empty: on or off.
    """

    name: str
    default: bool | str
    label: str
    info: str
    shown: str
    values: tuple[str, ...] = ()

    @property
    def setting(self) -> str:
        """The name of its setting."""
        return f"fast_compile_{self.name}"

    @property
    def field(self) -> str:
        """The name of its infotext field, which is there where it isn't as it is by default."""
        return f"{TITLE} {self.shown}"

    def read(self, text: str) -> bool | str:
        """What is meant by its text in infotext, or on an axis of the plot."""
        word = text.strip().lower()
        if self.values:
            return word if word in self.values else self.default
        return word in ("on", "true", "1")


ENABLED = Switch(
    "enabled",
    False,
    "Enable Fast Compile",
    "whether the toggle is on when the webui starts; the toggle itself sets this",
    "Enabled",
)
OTHERS = (
    Switch(
        "cuda_graphs",
        True,
        "CUDA graphs",
        "the fastest way; costs GPU memory for each resolution in use",
        "CUDA graphs",
    ),
    Switch("vae", True, "VAE", "also decoding and encoding of pictures, in float16 and bfloat16", "VAE"),
    Switch("text_encoder", True, "Text encoder", "also prompts", "text encoder"),
    Switch(
        "quality",
        EXACT,
        "Quality",
        "of the UNet: near-exact computes layers in 8 bits as far as an error budget allows, fast within a larger one",
        "quality",
        QUALITIES,
    ),
)
SWITCHES = (ENABLED, *OTHERS)
