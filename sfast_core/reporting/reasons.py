"""Why a call runs as it was: the kinds of reasons, each with its sentence, what it means, and what the user can do
about it in each host.

From this table come the report's words, the log's, the badge's and docs/troubleshooting.md's (``python -m
benchmarks.reasons``).
"""

from __future__ import annotations

from .reason import HOSTS, REPORT, UNKNOWN, Advice, Kind

KINDS: dict[str, Kind] = {UNKNOWN.code: UNKNOWN}


def _kind(code: str, sentence: str, means: str, do: str | Advice) -> Kind:
    KINDS[code] = kind = Kind(code, sentence, means, do)
    return kind


def table() -> list[str]:
    """The documents' tables: all kinds, what is of none last, and what can be done where that depends on the host."""
    by_host = dict.fromkeys(kind.do for kind in KINDS.values() if isinstance(kind.do, Advice))
    kinds = sorted(KINDS.values(), key=lambda kind: not kind.code)
    head, second = "| the reason | what it is | what to do |", f"| what to do | {' | '.join(HOSTS.values())} |"
    return [
        head,
        "|---|---|---|",
        *(kind.row() for kind in kinds),
        "",
        second,
        "|---|---|---|---|",
        *(advice.row() for advice in by_host),
    ]


_NOTHING = "nothing: what it makes is right, and this call is as fast as it was"
_AGAIN = "nothing: it is traced again"
_ONE_OF_TWO = "use one of the two"
_TURN_OFF = "turn it off where you don't need it; pictures without it are fast"
_TAKE_OUT = "take that node out where you don't need it; calls without it stay fast"
_EXTENSION_OFF = "turn that extension off where you don't need it; pictures without it are fast"
_ROOM = "free GPU memory, so that the whole model fits: a smaller one, or fewer at once"
_WITHOUT = Advice(
    "without that code", "leave that out where you don't need it; calls without it are fast", _TAKE_OUT, _EXTENSION_OFF
)
_WHOSE = Advice(  # somebody else's, or the model's own
    "whose code it is",
    "move that out of the forward, where the code is yours; else nothing: this call is as fast as it was",
    "if a node brings that in, take it out where you don't need it; if the model itself does, nothing: this call is as"
    " fast as it was",
    "if an extension brings that in, turn it off where you don't need it; if the model itself does, nothing: this call"
    " is as fast as it was",
)
_MAKE_ROOM = Advice(
    "more room", "keep the whole model on the GPU: a smaller one, or one whose parts aren't offloaded", _ROOM
)
_OTHER_ARGUMENT = Advice(
    "another argument",
    "pass tensors, numbers, text and containers of them, and keep other objects on the module",
    "take out the node that hands that to the model where you don't need it; calls without it stay fast",
    "turn off the extension that hands that to the model where you don't need it; pictures without it are fast",
)
_COMPUTES = Advice(
    "fixed weights",
    "put adapters into the weights where they stay (fuse_lora), or leave them out",
    "save the model with its LoRAs in it, if its weights are quantised; else take out the node that wraps them",
    "turn off the extension that wraps the weights where you don't need it",
)


# -- the call and where it runs ------------------------------------------------------------------------------------

NO_GPU = _kind(
    "no-gpu",
    "the inputs are on {device}, which isn't a CUDA device",
    "The model is on the CPU.",
    "nothing is faster without an NVIDIA GPU that PyTorch sees: run `doctor`",
)
NO_TENSOR = _kind("no-tensor", "there is no tensor among the arguments", "There is nothing to compute with.", _NOTHING)
EMPTY = _kind("empty", "an input is empty", "A batch of nothing.", _NOTHING)
GRADIENTS = _kind(
    "gradients",
    "gradients are being recorded: call it under torch.no_grad() or torch.inference_mode()",
    "The model is being trained, or called from a script.",
    Advice("no gradients", "call it under torch.inference_mode()", f"nothing where you train it; else {REPORT}"),
)
OWN_GRAPH = _kind(
    "own-graph", "the caller is capturing a CUDA graph of its own", "Somebody else captures this very call.", _NOTHING
)
JIT_TRACE = _kind("jit-trace", "torch.jit.trace is tracing it", "Another compiler reads what the model does.", _NOTHING)
TRANSFORM = _kind(
    "transform", "it is called inside a transform of torch.func", "vmap, grad or jvp runs the model.", _NOTHING
)
FORWARD_MODE = _kind(
    "forward-mode",
    "forward-mode gradients are being computed",
    "Derivatives are computed along with the values.",
    _NOTHING,
)
COMPILED_AROUND = _kind(
    "compiled-around",
    "torch.compile compiles what runs around it",
    "The call is inside a function that torch.compile has compiled.",
    _ONE_OF_TWO,
)
COMPILED_TOO = _kind(
    "compiled-too",
    "torch.compile is applied to it too: use one of the two",
    "Both accelerate the same model.",
    _ONE_OF_TWO,
)
WATCHED = _kind(
    "watched",
    "{mode} watches each of torch's functions, of which a replay calls none",
    "A profiler or a debugging tool of PyTorch's is on.",
    "turn it off where you don't need it",
)
PROFILER = _kind(
    "profiler",
    "a profiler of C's is at work",
    "cProfile is on, beside which nothing else can see which code runs.",
    "turn it off where you don't need it",
)
TOOLS = _kind(
    "tools",
    "all of Python's monitoring tools are in use by others",
    "Debuggers and profilers leave no room to see which code runs.",
    "turn one of them off",
)

# -- its arguments --------------------------------------------------------------------------------------------------

HOLDS_ITSELF = _kind(
    "holds-itself", "{place} holds itself", "Comparing that argument would never end.", _OTHER_ARGUMENT
)
TOO_DEEP = _kind("too-deep", "{place} is deeper than {most} containers in one another", "Likewise.", _OTHER_ARGUMENT)
TOO_MANY = _kind(
    "too-many",
    "{place} brings the arguments to more than {most:,} values",
    "An option so large that comparing it takes longer than it saves.",
    _OTHER_ARGUMENT,
)
TENSOR_KEY = _kind(
    "tensor-key",
    "{place} has a tensor as a key",
    "Which of two such calls is the other can't be said.",
    _OTHER_ARGUMENT,
)
NOT_KEYED = _kind(
    "not-keyed",
    "{place} holds a {kind}, which can't be part of a signature",
    "The model reads an argument of which can't be said whether it is the same at another call, such as an iterator or"
    " an object.",
    _OTHER_ARGUMENT,
)
NOT_STRIDED = _kind(
    "not-strided",
    "{place} is a {kind} of layout {layout}, needs a plain strided tensor",
    "A sparse tensor, or one of a class of its own.",
    _OTHER_ARGUMENT,
)
WRITES_ARGUMENTS = _kind(
    "writes-arguments", "the call changes its arguments", "It takes things out of its lists, say.", _WHOSE
)
GROWS = _kind(
    "grows",
    "the {names} of a {kind} grow with each call",
    "A cache of a language model that is another at each token.",
    Advice(
        "a static cache",
        "generate(cache_implementation='static'), whose cache stays as large as it is, where the model has no sliding"
        " window",
        _NOTHING,
    ),
)
KEEP_CHANGING = _kind(
    "keep-changing",
    "its shapes keep changing: this one is traced when it comes again",
    "A VAE or a text encoder sees ever new sizes.",
    "nothing: a size that comes again is traced",
)
TAKE_TURNS = _kind(
    "take-turns",
    "it would be traced at nearly every call: more than {most} signatures take turns",
    "More sizes and options come in turn than traces are kept.",
    "raise max_signatures in the settings",
)
SETTING_CHANGES = _kind(
    "setting-changes",
    "it would be traced at nearly every call: PyTorch's setting {setting!r} is another",
    "Other code switches a setting of PyTorch's from call to call.",
    "have it set once, before the first step",
)
CHANGES = _kind(
    "changes",
    "it would be traced at nearly every call: {change}",
    "The model, or one of its options, is another at each call.",
    _WHOSE,
)

# -- what a record can't hold ---------------------------------------------------------------------------------------

LIVE_NOW = _kind(
    "live-now",
    "{why}: {what} live from now on",
    "A part of the model can't be recorded; it runs as it is, and everything around it is fused.",
    _AGAIN,
)
MAY_READ = _kind(
    "may-read",
    "the model may read {names} from its options",
    "The model looks for an option that was taken to be of no use to it.",
    _AGAIN,
)
READS_OPTION = _kind(
    "reads-option",
    "the model reads {name} from its options, which is another at every step",
    "Code inside the model looks at which step it is, or at which prompts the call is for (cond_or_uncond).",
    _WHOSE,
)
READS_FUNCTION = _kind(
    "reads-function",
    "the model reads {name} of a function of others: {function}",
    "The model looks into a function that was put into it.",
    _WITHOUT,
)
FINISHED = _kind(
    "finished",
    "{what}: finished by the original forward",
    "Code of others inside the model did something otherwise than when it was traced.",
    "nothing: each way is traced once",
)
NOT_MADE_AGAIN = _kind(
    "not-made-again",
    "{name} is handed a {kind}, which can't be made again at another call",
    "Code of others inside the model is handed something that can't be handed on.",
    _WHOSE,
)
CHANGES_MODULE = _kind(
    "changes-module",
    "the call itself changes the module: {what}",
    "Code within the model keeps something from step to step that it reads again: a result, or a count.",
    _WHOSE,
)
CHANGES_SETTING = _kind(
    "changes-setting",
    "the call itself changes PyTorch's setting {setting!r}",
    "Code within the model switches it and leaves it so.",
    "have it set once, before the first step",
)
RANDOM = _kind("random", "it draws random numbers", "Code within the model draws some at each call.", _WHOSE)
RANDOM_STATE = _kind("random-state", "{name} asks for, or sets, the state of random numbers", "Likewise.", _WHOSE)
RANDOM_MEANWHILE = _kind(
    "random-meanwhile",
    "Python's or NumPy's random numbers were drawn meanwhile",
    "By this call, or by another thread.",
    _AGAIN,
)
NOT_COMPARED = _kind(
    "not-compared",
    "{origin} is a {kind}, whose state can't be compared",
    "Code within the model goes on with something at each call, such as an iterator or a file.",
    _WHOSE,
)
OUTSIDE = _kind(
    "outside",
    "{origin} {asks}",
    "Code within the model reads what is outside of it and may be another at each call, such as a file or the clock.",
    _WHOSE,
)
UNLIKE = _kind(
    "unlike",
    "{name} asks for what an input, or a weight, isn't alike in at each call",
    "The model reads a tensor's version, address or storage.",
    REPORT,
)
OVERLAPPING = _kind(
    "overlapping",
    "{name} writes to one of two tensors that lie in one memory",
    "Code of others inside the model changes what it is handed twice.",
    _WHOSE,
)
TOO_MUCH = _kind(
    "too-much",
    "{origin} holds too much to be compared at each call",
    "Code within the model reads a list or a table so long that comparing it takes longer than it saves.",
    _WHOSE,
)
HOOKS = _kind(
    "hooks",
    "{whose} forward hooks",
    "Somebody else's code runs inside the model at each call.",
    Advice("no hooks", "take the hooks off where you don't need them", _TAKE_OUT, _EXTENSION_OFF),
)
KEEPS_STATE = _kind(
    "keeps-state",
    "{name} has a hook of diffusers' that keeps state from step to step",
    "A cache of diffusers' that leaves layers out at some steps.",
    "call disable_cache() where you don't need it",
)
READS_VALUE = _kind(
    "reads-value",
    "{name} reads a tensor's value into Python",
    "What the model does next depends on a value that is only known on the GPU.",
    Advice(
        "no values in Python",
        f"compute with tensors in its place (torch.where, masks), where the code is yours; else {REPORT}",
        REPORT,
    ),
)
BROUGHT = _kind(
    "brought",
    "{name} reads a tensor that is on {where}, not on {device}",
    "Code within the model brings a tensor from main memory at each call.",
    _WHOSE,
)
NOT_READ = _kind(
    "not-read",
    "what steers it can't be read: {error}",
    "There is a module inside that isn't Python's, such as one of TorchScript's.",
    Advice("a module of Python's", "use the module that it was made of", _WHOSE.comfy, _WHOSE.webui),
)
NOT_TRACED = _kind(
    "not-traced",
    "it can't be traced: {why}",
    "The model does what a record can't hold, such as returning something that is no tensor.",
    REPORT,
)
NOT_FUSED = _kind(
    "not-fused",
    "it can't be fused: {error}: {why}",
    "The fused program failed, or its result was further from eager's than rounding explains.",
    REPORT,
)
OVER_BUDGET = _kind(
    "over-budget",
    "{why}, and the quality {quality} is to be nearer",
    "Products of 8 bits were chosen in another call, and cost more in this one.",
    _AGAIN,
)
FAILED = _kind("failed", "the fused forward failed: {error}", "A kernel failed.", f"run `doctor`; {REPORT}")

# -- memory and weights ---------------------------------------------------------------------------------------------

OUT_OF_MEMORY = _kind(
    "out-of-memory", "out of memory", "Every graph was released first, and it was still too little.", _ROOM
)
NOT_THERE = _kind(
    "not-there",
    "the weight {weight} is on {where}, not on {device}",
    "A weight is not where the model runs, and can't be streamed here: the host has moved a part of the model away.",
    _MAKE_ROOM,
)
PARTLY_AWAY = _kind("partly-away", "{why}, and a part of it is not on {device}", "Likewise.", _MAKE_ROOM)
BESIDE = _kind(
    "beside",
    "the model is running without Fast Compile too, at this very moment",
    "Another thread uses its weights as they lay before.",
    _NOTHING,
)
COMPUTED = _kind(
    "computed",
    "its layers compute their weights at each call (a {kind} does)",
    "A LoRA on a quantised model, or weights that a node wraps.",
    _COMPUTES,
)
WHICH_DTYPE = _kind(
    "which-dtype",
    "the weight {weight} is computed at each use, and in which dtype can't be said",
    "Likewise.",
    _COMPUTES,
)
COMPUTES = _kind("computes", "a {kind} computes its weight at each call", "Likewise.", _COMPUTES)
NOT_UNDERSTOOD = _kind(
    "not-understood",
    "the weight {name} of a {kind} is not understood",
    "A format of weights that isn't known.",
    f"take the file in another format (float16, bfloat16, fp8), or {REPORT}",
)
IN_A_FILE = _kind(
    "in-a-file",
    "dynamic VRAM keeps a {kind} in a file",
    "The whole model doesn't fit, and a part of it isn't in main memory either.",
    _ROOM,
)
ANOTHER_DTYPE = _kind(
    "another-dtype",
    "the weight {weight} is {dtype} in main memory, and {wanted} where dynamic VRAM brings it",
    "The whole model doesn't fit, and ComfyUI casts the rest on the way.",
    _ROOM,
)
PAGES_MOVED = _kind(
    "pages-moved", "dynamic VRAM moved pages while they were filled", "Memory was short for a moment.", _ROOM
)
NOT_PAGED = _kind(
    "not-paged",
    "the weight {weight} isn't in dynamic VRAM's range",
    "ComfyUI hasn't loaded it yet.",
    "nothing: it is tried again",
)
UNKNOWN_VRAM = _kind(
    "unknown-vram",
    "this version of dynamic VRAM is not understood",
    "ComfyUI's own memory library is another one than those that are known.",
    f"start ComfyUI with --disable-dynamic-vram, and {REPORT}",
)

# -- VAEs, text encoders, ControlNets -------------------------------------------------------------------------------

FLOAT32 = _kind(
    "float32",
    "it computes in float32 with TF32 switched off, and the fused kernels are worth it with TF32, float16 or bfloat16",
    "A VAE in float32.",
    Advice(
        "another precision",
        "load the VAE in bfloat16, if its pictures bear it",
        "start ComfyUI with --bf16-vae, if the VAE's pictures bear it",
        "start without --no-half-vae, if the VAE's pictures bear it",
    ),
)
NOT_A_PICTURE = _kind(
    "not-a-picture",
    "its input has {shown}: VAEs of pictures, video and sound are accelerated",
    "The VAE is not one of those.",
    _NOTHING,
)
NO_CLIP = _kind("no-clip", "it is no {known}: {why}", "A text encoder whose prompts differ in length.", _NOTHING)
NO_HALVES = _kind(
    "no-halves", "it has no encoder or decoder that is understood", "A VAE that is built in a way of its own.", REPORT
)
OTHER_MODEL = _kind("other-model", "{what} is not understood", "A model that is built in a way of its own.", REPORT)
CONTROL_LORA = _kind(
    "control-lora",
    "a Control-LoRA makes its model anew for each sampling, and tracing that would take longer than it saves",
    "There is nothing that stays.",
    _NOTHING,
)

# -- in ComfyUI -----------------------------------------------------------------------------------------------------

NODE_REPLACES = _kind(
    "node-replaces",
    "another node replaces its {attribute} ({by})",
    "Another node replaces methods or parts of the model.",
    _TAKE_OUT,
)
NODE_WRAPS = _kind(
    "node-wraps",
    "another node wraps its forward: {names}",
    "Another node's code would run inside the trace.",
    _TAKE_OUT,
)
RUN_BY = _kind(
    "run-by",
    "its blocks are run by {who}, not by its forward",
    "Another node runs the model's blocks by code of its own.",
    _TAKE_OUT,
)
PAST_NODE = _kind(
    "past-node",
    "the call came past the node, by options that were copied before it",
    "Another node samples with options that it had copied before.",
    "put the node Apply Fast Compile in front of that node",
)
NO_MODULE = _kind(
    "no-module",
    "its diffusion model is a {kind}, not a PyTorch module",
    "Another runtime, such as TensorRT's, computes it.",
    _ONE_OF_TWO,
)
NOT_HOOKED = _kind("not-hooked", "nothing could be put in the place of its forward", "The log says why.", REPORT)

# -- in A1111 and Forge ---------------------------------------------------------------------------------------------

EXTENSION_REPLACES = _kind(
    "extension-replaces",
    "another extension replaces its {attribute} ({by})",
    "Another of the webui's extensions works inside the model.",
    _EXTENSION_OFF,
)
WENT_PAST = _kind("went-past", "a sampling went past it: {who}", "Likewise.", _EXTENSION_OFF)
LORA_FUNCTIONAL = _kind(
    "lora-functional",
    "the setting 'Lora: use old method' computes LoRAs in each layer",
    "A setting of A1111's: LoRAs don't go into the weights.",
    _TURN_OFF,
)
ONLINE_LORA = _kind(
    "online-lora",
    "a LoRA is merged into the weights at each call ('online' LoRAs)",
    "Forge merges LoRAs at each call.",
    "choose a setting of 'Diffusion in Low Bits' without 'fp16 LoRA'",
)
LOWVRAM = _kind(
    "lowvram",
    "--lowvram moves its parts to the GPU one by one",
    "Its weights aren't where a fused program could read them.",
    "start with --medvram, if the GPU bears it",
)
SD_UNET = _kind(
    "sd-unet", "another UNet is selected in the setting 'SD Unet'", "That UNet isn't this one.", "choose None there"
)
