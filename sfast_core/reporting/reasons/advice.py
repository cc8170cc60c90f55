"""What a user can do that more than one kind of reason says."""

from __future__ import annotations

from ..reason import REPORT, Advice

NOTHING = "nothing: what it makes is right, and this call is as fast as it was"
AGAIN = "nothing: it is traced again"
ONE_OF_TWO = "use one of the two"
TURN_OFF = "turn it off where you don't need it; pictures without it are fast"
TAKE_OUT = "take that node out where you don't need it; calls without it stay fast"
GIVE_BACK = f"{TAKE_OUT}, if need be once the model is loaded anew"
EXTENSION_OFF = "turn that extension off where you don't need it; pictures without it are fast"
ROOM = "free GPU memory, so that the whole model fits: a smaller one, or fewer at once"
WITHOUT = Advice(
    "without that code", "leave that out where you don't need it; calls without it are fast", TAKE_OUT, EXTENSION_OFF
)
WHOSE = Advice(  # somebody else's, or the model's own
    "whose code it is",
    "move that out of the forward, where the code is yours; else nothing: this call is as fast as it was",
    "if a node brings that in, take it out where you don't need it; if the model itself does, nothing: this call is as"
    " fast as it was",
    "if an extension brings that in, turn it off where you don't need it; if the model itself does, nothing: this call"
    " is as fast as it was",
)
MAKE_ROOM = Advice(
    "more room", "keep the whole model on the GPU: a smaller one, or one whose parts aren't offloaded", ROOM
)
OTHER_ARGUMENT = Advice(
    "another argument",
    "pass tensors, numbers, text and containers of them, and keep other objects on the module",
    "if a node hands that to the model, take it out where you don't need it; if the model itself does, nothing: this"
    " call is as fast as it was",
    "if an extension hands that to the model, turn it off where you don't need it; if the model itself does, nothing:"
    " this call is as fast as it was",
)
ONE_SETTING = Advice(
    "one setting",
    "set it once, before the first call",
    "if a node switches it, have that say the same in the whole workflow, or take it out; else nothing: this call is as"
    " fast as it was",
    "if an extension switches it, turn that off where you don't need it; else nothing: this call is as fast as it was",
)
ELSE_REPORT = Advice(
    "whose code, or a report",
    REPORT,
    f"if a node brings that in, take it out where you don't need it; else {REPORT}",
    f"if an extension brings that in, turn it off where you don't need it; else {REPORT}",
)
IF_COMPUTES = Advice(
    "fixed weights",
    "put adapters into the weights where they stay (fuse_lora), or leave them out",
    "save the model with its LoRAs in it, if its weights are quantised; else take out the node that wraps them",
    "turn off the extension that wraps the weights where you don't need it",
)
