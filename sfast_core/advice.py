"""What a reason for running as before means, and what the user can do about it: in the log, the report and on the badge."""

from __future__ import annotations

from typing import NamedTuple


class Advice(NamedTuple):
    """For every reason that holds ``words``."""

    words: str
    means: str
    do: str


_TAKE_IT_OUT = "take that node out where you don't need it; calls without it stay fast"
_TURN_IT_OFF = "turn it off where you don't need it; pictures without it are fast"
_MAKE_ROOM = "free GPU memory, so that the whole model fits: a smaller one, or fewer at once"
_NOTHING = "nothing: pictures are right, and this call is as fast as it was"
_REPORT = "please report it, with the text of the report"

#: The first that matches counts. ``docs/troubleshooting.md`` has the same table; a test compares them.
ADVICE = (
    Advice("which isn't a CUDA device", "The model is on the CPU.", "nothing is faster without an NVIDIA GPU that PyTorch sees: run `doctor`"),
    Advice("another extension", "Another of the webui's extensions works inside the model.", _TURN_IT_OFF),
    Advice("computes LoRAs in each layer", "A setting of A1111's: LoRAs don't go into the weights.", _TURN_IT_OFF),
    Advice("'online' LoRAs", "Forge merges LoRAs at each call.", "choose a setting of 'Diffusion in Low Bits' without 'fp16 LoRA'"),
    Advice("--lowvram moves", "Its weights aren't where a fused program could read them.", "start with --medvram, if the GPU bears it"),
    Advice("is selected in the setting 'SD Unet'", "That UNet isn't this one.", "choose None there"),
    Advice("it is no CLIP", "A text encoder whose prompts differ in length.", _NOTHING),
    Advice("finished by the original forward", "Another node's code inside the model did something otherwise than when it was traced.", "nothing: each way is traced once"),
    Advice("can't be made again at another call", "Another node's code inside the model is handed something that can't be handed on.", _REPORT),
    Advice("live from now on", "A part of the model can't be recorded; it runs as it is, and everything around it is fused.", "nothing: it is traced again"),
    Advice("from its options", "The model looks for an option that another node has put there.", "nothing: it is traced again"),
    Advice("another node replaces", "Another node replaces methods or parts of the model.", _TAKE_IT_OUT),
    Advice("not by its forward", "Another node runs the model's blocks by code of its own.", _TAKE_IT_OUT),
    Advice("came past the node", "Another node samples with options that it had copied before.", "put the node Apply Fast Compile in front of that node"),
    Advice("another node wraps its forward", "Another node's code would run inside the trace.", _TAKE_IT_OUT),
    Advice("torch.compile is applied to it too", "Both accelerate the same model.", "use one of the two"),
    Advice("compute their weights at each call", "Another node wraps weights.", _TAKE_IT_OUT),
    Advice("dynamic VRAM", "A part of the model is not on the GPU just now.", _MAKE_ROOM),
    Advice(", not on ", "A part of the model is not on the GPU, and can't be streamed here.", _MAKE_ROOM),
    Advice("out of memory", "Every graph was released first, and it was still too little.", _MAKE_ROOM),
    Advice("gradients are being recorded", "The model is being trained, or called from a script.", "call it under torch.inference_mode()"),
    Advice("its shapes keep changing", "A VAE or a text encoder sees ever new sizes.", "nothing: a size that comes again is traced"),
    Advice("it computes in float32", "A VAE in float32.", "start ComfyUI with --bf16-vae, if the VAE's pictures bear it"),
    Advice("VAEs of pictures, video and sound", "The VAE is not one of those.", _NOTHING),
    Advice("signatures take turns", "More sizes and options come in turn than traces are kept.", "raise max_signatures in the settings"),
    Advice("PyTorch's setting", "Other code switches it from call to call, or within one.", "have it set once, before the first step"),
    Advice("watches each of torch's functions", "A profiler or a debugging tool of PyTorch's is on.", "turn it off where you don't need it"),
    Advice("holds itself", "An option that another node made; comparing it would never end.", _TAKE_IT_OUT),
    Advice("containers in one another", "Likewise.", _TAKE_IT_OUT),
    Advice("brings the arguments to more than", "An option so large that comparing it takes longer than it saves.", _TAKE_IT_OUT),
    Advice("traced at nearly every call", "Another node changes the model, or one of its options, at each call.", _TAKE_IT_OUT),
    Advice(
        "grow with each call",
        "A cache of a language model that is another at each token.",
        "generate(cache_implementation='static'), whose cache stays as large as it is, where the model has no sliding window",
    ),
    Advice("an input is empty", "A batch of nothing.", _NOTHING),
    Advice("a CUDA graph of its own", "Somebody else captures this very call.", _NOTHING),
    Advice("has forward hooks", "Somebody else's code runs inside the model at each call.", "take the hooks off where you don't need them"),
    Advice("keeps state from step to step", "A cache of diffusers' that leaves layers out at some steps.", "call disable_cache() where you don't need it"),
    Advice("the call itself changes the module", "Code within the model keeps something from step to step that it reads again: a result, or a count.", _TAKE_IT_OUT),
    Advice("random numbers", "Code within the model draws some at each call.", _TAKE_IT_OUT),
    Advice("whose state can't be compared", "Code within the model goes on with something at each call, such as an iterator or a file.", _TAKE_IT_OUT),
    Advice("too much to be compared at each call", "Code within the model reads a list or a table so long that comparing it takes longer than it saves.", _TAKE_IT_OUT),
    Advice("a profiler of C's is at work", "cProfile is on, beside which nothing else can see which code runs.", "turn it off where you don't need it"),
    Advice("monitoring tools are in use", "Debuggers and profilers leave no room to see which code runs.", "turn one of them off"),
    Advice("torch.jit.trace is tracing it", "Another compiler reads what the model does.", _NOTHING),
    Advice("compiles what runs around it", "The call is inside a function that torch.compile has compiled.", "use one of the two"),
    Advice("a transform of torch.func", "vmap, grad or jvp runs the model.", _NOTHING),
    Advice("forward-mode gradients", "Derivatives are computed along with the values.", _NOTHING),
    Advice("what steers it can't be read", "There is a module inside that isn't Python's, such as one of TorchScript's.", "use the module that it was made of"),
    Advice("it can't be traced", "The model does what a record can't hold, such as reading a value into Python.", _REPORT),
    Advice("it can't be fused", "The fused program failed, or its result was further from eager's than rounding explains.", _REPORT),
    Advice("the fused forward failed", "A kernel failed.", f"run `doctor`; {_REPORT}"),
)


def advice(reason: str) -> str:
    """What the user can do about ``reason``, a clause without a full stop."""
    return next((found.do for found in ADVICE if found.words in reason), _REPORT)
