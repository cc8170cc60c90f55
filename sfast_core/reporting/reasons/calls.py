"""A call that has no signature, or none that may be recorded: where it runs, who watches, what it is given."""

from __future__ import annotations

from ..reason import Advice, Kind
from .advice import NOTHING, ONE_OF_TWO, ONE_SETTING, OTHER_ARGUMENT, WHOSE

# -- the call and where it runs ---------------------------------------------------------------------------------------

NO_GPU = Kind(
    "no-gpu",
    "the inputs are on {device}, which isn't a CUDA device",
    "The model is on the CPU.",
    "nothing is faster without an NVIDIA GPU that PyTorch sees: run `python -m sfast_core doctor`",
)
NO_TENSOR = Kind("no-tensor", "there is no tensor among the arguments", "There is nothing to compute with.", NOTHING)
EMPTY = Kind("empty", "an input is empty", "A batch of nothing.", NOTHING)
GRADIENTS = Kind(
    "gradients",
    "gradients are being recorded: call it under torch.no_grad() or torch.inference_mode()",
    "The model is being trained, or called from a script.",
    Advice(
        "no gradients",
        "call it under torch.inference_mode()",
        "nothing: training, and steering by gradients, need the model's own forward",
    ),
)
OWN_GRAPH = Kind(
    "own-graph",
    "the caller is capturing a CUDA graph of its own",
    "Somebody else is capturing this very call.",
    NOTHING,
)
JIT_TRACE = Kind("jit-trace", "torch.jit.trace is tracing it", "Another compiler reads what the model does.", NOTHING)
TRANSFORM = Kind(
    "transform", "it is called inside a transform of torch.func", "vmap, grad or jvp runs the model.", NOTHING
)
FORWARD_MODE = Kind(
    "forward-mode",
    "forward-mode gradients are being computed",
    "Derivatives are computed along with the values.",
    NOTHING,
)
COMPILED_AROUND = Kind(
    "compiled-around",
    "torch.compile compiles what runs around it",
    "The call is inside a function that torch.compile has compiled.",
    ONE_OF_TWO,
)
COMPILED_TOO = Kind(
    "compiled-too",
    "torch.compile is applied to it too: use one of the two",
    "Both accelerate the same model.",
    ONE_OF_TWO,
)
WATCHED = Kind(
    "watched",
    "{mode} watches each of torch's functions, and a replay calls none of them",
    "One of PyTorch's profilers or debugging tools is on.",
    "turn it off where you don't need it",
)
PROFILER = Kind(
    "profiler",
    "a C profiler is active",
    "cProfile is on, and nothing else can then see which code runs.",
    "turn it off where you don't need it",
)
TOOLS = Kind(
    "tools",
    "all of Python's monitoring tools are in use",
    "Debuggers and profilers leave no room to see which code runs.",
    "turn one of them off",
)

# -- its arguments ----------------------------------------------------------------------------------------------------

HOLDS_ITSELF = Kind("holds-itself", "{place} holds itself", "Comparing that argument would never end.", OTHER_ARGUMENT)
TOO_DEEP = Kind(
    "too-deep",
    "{place} is deeper than {most} containers in one another",
    "Comparing that argument would take long.",
    OTHER_ARGUMENT,
)
TOO_MANY = Kind(
    "too-many",
    "{place} brings the arguments to more than {most:,} values",
    "An option so large that comparing it takes longer than it saves.",
    OTHER_ARGUMENT,
)
TENSOR_KEY = Kind(
    "tensor-key",
    "{place} has a tensor as a key",
    "Such calls can't be told apart.",
    OTHER_ARGUMENT,
)
NOT_KEYED = Kind(
    "not-keyed",
    "{place} holds a {kind}, which can't be part of a signature",
    "The model reads an argument that can't be compared from call to call, such as an iterator or an object.",
    OTHER_ARGUMENT,
)
NOT_STRIDED = Kind(
    "not-strided",
    "{place} is a {kind} of layout {layout}, needs a plain strided tensor",
    "A sparse tensor, or one of a special class.",
    OTHER_ARGUMENT,
)
WRITES_ARGUMENTS = Kind(
    "writes-arguments", "the call changes its arguments", "For example, it takes items out of its lists.", WHOSE
)
GROWS = Kind(
    "grows",
    "the {names} of a {kind} grow with each call",
    "A language model's cache that grows with each token.",
    Advice(
        "a static cache",
        "call generate(cache_implementation='static'), whose cache keeps its size, if the model has no sliding window",
        NOTHING,
    ),
)
KEEP_CHANGING = Kind(
    "keep-changing",
    "its shapes keep changing: this one is traced when it comes again",
    "A VAE or a text encoder keeps getting new sizes.",
    "nothing: a size that comes again is traced",
)
TAKE_TURNS = Kind(
    "take-turns",
    "it would be traced at nearly every call: more than {most} signatures take turns",
    "More sizes and options take turns than traces are kept.",
    "raise max_signatures in the settings",
)
SETTING_CHANGES = Kind(
    "setting-changes",
    "it would be traced at nearly every call: PyTorch's setting {setting!r} keeps changing",
    "Other code switches one of PyTorch's settings from call to call.",
    ONE_SETTING,
)
CHANGES = Kind(
    "changes",
    "it would be traced at nearly every call: {change}",
    "The model, or one of its options, is different at each call.",
    WHOSE,
)
