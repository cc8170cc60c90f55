"""What a record can't hold, and what became of a record."""

from __future__ import annotations

from ..reason import REPORT, Advice, Kind
from .advice import AGAIN, ELSE_REPORT, ONE_SETTING, WHOSE, WITHOUT

LIVE_NOW = Kind(
    "live-now",
    "{why}: {what} live from now on",
    "A part of the model can't be recorded; it runs as it is, and everything around it is fused.",
    AGAIN,
)
MAY_READ = Kind(
    "may-read",
    "the model may read {names} from its options",
    "The model looks for an option that it didn't seem to use.",
    AGAIN,
)
READS_OPTION = Kind(
    "reads-option",
    "the model reads {name} from its options, which changes at every step",
    "Code inside the model looks at which step it is, or at which prompts the call is for (cond_or_uncond).",
    WHOSE,
)
READS_FUNCTION = Kind(
    "reads-function",
    "the model reads {name} of somebody else's function: {function}",
    "The model looks into a function that another node has put into it.",
    WITHOUT,
)
READS_LEFT = Kind(
    "reads-left",
    "the model reads what {name} puts into its options: {key}",
    "Other people's code inside the model passes something on to later code.",
    WHOSE,
)
FINISHED = Kind(
    "finished",
    "{what}: finished by the original forward",
    "Other people's code inside the model did something else than when it was traced.",
    "nothing: each way is traced once",
)
NOT_MADE_AGAIN = Kind(
    "not-made-again",
    "{name} is given a {kind}, which can't be made again for another call",
    "Other people's code inside the model is given something that can't be given to it again.",
    WHOSE,
)
CHANGES_MODULE = Kind(
    "changes-module",
    "the call itself changes the module: {what}",
    "Code within the model keeps something from one step for the next, such as a result or a count.",
    WHOSE,
)
SAYS = Kind(
    "says",
    "the call says something with {name}, which a replay wouldn't say again",
    "Code within the model prints, logs, warns or writes to a file at each call.",
    WHOSE,
)
CHANGES_SETTING = Kind(
    "changes-setting",
    "the call itself changes PyTorch's setting {setting!r}",
    "Code within the model switches it and leaves it so.",
    ONE_SETTING,
)
RANDOM = Kind("random", "it draws random numbers", "Code within the model draws some at each call.", WHOSE)
RANDOM_STATE = Kind(
    "random-state",
    "{name} reads or sets the state of random numbers",
    "Code within the model handles random numbers itself.",
    WHOSE,
)
RANDOM_MEANWHILE = Kind(
    "random-meanwhile",
    "random numbers were drawn meanwhile",
    "By this call, or by another thread.",
    AGAIN,
)
NOT_COMPARED = Kind(
    "not-compared",
    "{origin} is a {kind}, whose state can't be compared",
    "Code within the model goes on with something from call to call, such as an iterator or a file.",
    WHOSE,
)
OUTSIDE = Kind(
    "outside",
    "{origin} {asks}",
    "Code within the model reads something outside of it that may change from call to"
    " call, such as a file or the clock.",
    WHOSE,
)
UNLIKE = Kind(
    "unlike",
    "{name} reads a property of an input or a weight that differs from call to call",
    "Code within the model reads a tensor's version, address or storage, as libraries with their own kernels do.",
    WHOSE,
)
OVERLAPPING = Kind(
    "overlapping",
    "{name} writes to one of two tensors that lie in one memory",
    "Other people's code inside the model changes a tensor that it is given twice.",
    WHOSE,
)
TOO_MUCH = Kind(
    "too-much",
    "{origin} holds too much to be compared at each call",
    "Code within the model reads a list or a table so long that comparing it takes longer than it saves.",
    WHOSE,
)
HOOKS_OF_ALL = Kind(
    "hooks-of-all",
    "all modules have forward hooks",
    "One of PyTorch's profilers or debugging tools is on.",
    "turn it off where you don't need it",
)
HOOKS = Kind(
    "hooks",
    "{whose} forward hooks",
    "Somebody else's code runs inside the model at each call.",
    Advice("no hooks", "take the hooks off where you don't need them", WHOSE.comfy, WHOSE.webui),
)
KEEPS_STATE = Kind(
    "keeps-state",
    "{name} has a hook of diffusers' that keeps state from step to step",
    "One of diffusers' caches, which skip layers at some steps.",
    "call disable_cache() where you don't need it",
)
READS_VALUE = Kind(
    "reads-value",
    "{name} reads a tensor's value into Python",
    "What the model does next depends on a value that is only known on the GPU.",
    Advice(
        "no values in Python",
        "compute with tensors instead (torch.where, masks) if the code is yours; otherwise"
        " nothing: this call is as fast as before",
        WHOSE.comfy,
        WHOSE.webui,
    ),
)
SIZE_BY_VALUE = Kind(
    "size-by-value",
    "{name} returns a tensor whose shape depends on another's values",
    "The size of a result is only known on the GPU.",
    READS_VALUE.do,
)
BY_ITS_PLACE = Kind(
    "by-its-place",
    "{name} depends on how a tensor lies in memory",
    "Code within the model reads memory past a tensor's shape.",
    WHOSE,
)
FROM_ELSEWHERE = Kind(
    "from-elsewhere",
    "{name} reads a {what} that is no input, no weight and not computed in this call",
    "A library computes a part of the model without PyTorch's operators (Nunchaku, for"
    " example), or code within it brings a tensor from elsewhere.",
    WHOSE,
)
BROUGHT = Kind(
    "brought",
    "{name} reads a tensor that is on {where}, not on {device}",
    "Code within the model brings a tensor from main memory at each call.",
    WHOSE,
)
NOT_READ = Kind(
    "not-read",
    "what steers it can't be read: {error}",
    "There is a module inside that isn't Python's, such as one of TorchScript's.",
    Advice("a module of Python's", "use the module that it was made from", WHOSE.comfy, WHOSE.webui),
)
BLOCK_AS_IT_WAS = Kind(
    "block-as-it-was",
    "{why}, and a block of it runs as it was: {block}",
    "Another node runs the model's blocks, and one of these can't be fused by itself.",
    WHOSE,
)
FAILED_RECORDING = Kind(
    "failed-recording",
    "it failed while it was recorded: {error}",
    "An error came up while a call was recorded, but not when it ran plainly.",
    REPORT,
)
NOT_TRACED = Kind(
    "not-traced",
    "it can't be traced: {why}",
    "The model, or code within it, does something that can't be recorded, such as returning what is no tensor.",
    ELSE_REPORT,
)
NOT_FUSED = Kind(
    "not-fused",
    "it can't be fused: {error}: {why}",
    "The fused program failed, or its result was further from eager's than rounding can explain.",
    REPORT,
)
OVER_BUDGET = Kind(
    "over-budget",
    "{why}, which is too much for the quality {quality}",
    "The layers in 8 bits were chosen in another call, and cause a larger error in this one.",
    AGAIN,
)
FURTHER = Kind(
    "further",
    "the fused result is {distance:.1e} from eager's (relative L2), at most {allowed:.0e} is allowed",
    "The difference is larger than rounding can explain.",
    REPORT,
)
OURS = Kind("ours", "Fast Compile failed: {error}", "An error in this pack.", REPORT)
FAILED = Kind(
    "failed", "the fused forward failed: {error}", "A kernel failed.", f"run `python -m sfast_core doctor`; {REPORT}"
)
