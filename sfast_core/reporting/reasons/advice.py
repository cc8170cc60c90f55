"""What a user can do that more than one kind of reason says."""

from __future__ import annotations

from ..reason import REPORT, Advice

NOTHING = "nothing: the result is right, and this call is as fast as before"
AGAIN = "nothing: it is traced again"
ONE_OF_TWO = "use one of the two"
TURN_OFF = "turn it off where you don't need it; pictures without it are fast"
TAKE_OUT = "remove that node where you don't need it; calls without it stay fast"
GIVE_BACK = f"{TAKE_OUT}, if necessary after the model has been reloaded"
EXTENSION_OFF = "turn that extension off where you don't need it; pictures without it are fast"
ROOM = "free GPU memory so that the whole model fits: use a smaller model, or fewer at once"
WITHOUT = Advice(
    "without that code", "leave that out where you don't need it; calls without it are fast", TAKE_OUT, EXTENSION_OFF
)
WHOSE = Advice(  # somebody else's, or the model's own
    "whose code it is",
    "move that out of the forward if the code is yours; otherwise nothing: this call is as fast as before",
    "if a node brings that in, remove the node where you don't need it; if the model"
    " itself does, nothing: this call is as fast as before",
    "if an extension brings that in, turn it off where you don't need it; if the model"
    " itself does, nothing: this call is as fast as before",
)
MAKE_ROOM = Advice(
    "more room", "keep the whole model on the GPU: use a smaller one, or don't offload parts of it", ROOM
)
OTHER_ARGUMENT = Advice(
    "another argument",
    "pass tensors, numbers, text and containers of them, and keep other objects on the module",
    "if a node passes that to the model, remove the node where you don't need it; if the"
    " model itself does, nothing: this call is as fast as before",
    "if an extension passes that to the model, turn it off where you don't need it; if"
    " the model itself does, nothing: this call is as fast as before",
)
ONE_SETTING = Advice(
    "one setting",
    "set it once, before the first call",
    "if a node switches it, use one setting in the whole workflow, or remove the node;"
    " otherwise nothing: this call is as fast as before",
    "if an extension switches it, turn that off where you don't need it; otherwise"
    " nothing: this call is as fast as before",
)
ELSE_REPORT = Advice(
    "whose code, or a report",
    REPORT,
    f"if a node brings that in, remove the node where you don't need it; otherwise {REPORT}",
    f"if an extension brings that in, turn it off where you don't need it; otherwise {REPORT}",
)
IF_COMPUTES = Advice(
    "fixed weights",
    "merge adapters into the weights for good (fuse_lora), or leave them out",
    "save the model with its LoRAs merged if its weights are quantised; otherwise remove the node that wraps them",
    "turn off the extension that wraps the weights where you don't need it",
)
