"""Train the demo's text-to-image model on pictures drawn by code:
``python -m benchmarks.train_demo_model --minutes 4 --out FOLDER``.

First the VAE, then the UNet together with the text encoder, on CUDA (bf16) where there is one, else on the CPU.
Pictures and captions are drawn on the device. Seeds are fixed, but the learning rate follows the clock unless
--vae-steps and --steps are given. Writes a diffusers StableDiffusionPipeline in fp16, and a picture of samples with
their captions.
"""

from __future__ import annotations

import argparse
import math
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from . import demo_architecture, demo_data
from .demo_picture import draw_samples

VAE_SHARE = 0.3  #: of the time; the rest trains the UNet and the text encoder
KL_WEIGHT = 5e-4
EMPTY_PROMPT_SHARE = 0.1  #: of the captions are dropped, so that classifier-free guidance works
Batch = tuple[torch.Tensor, ...]
Step = Callable[[Batch], torch.Tensor]  #: trains on one batch and returns its loss
SAMPLE_PROMPTS = (
    "a red circle on a blue background",
    "a yellow star on a purple background",
    "a large white heart on a black background",
    "a green triangle on a pink background, at the top",
    "a small orange ring on a teal background",
    "a black cross on a yellow background, on the left",
    "a pink moon on a black background, in the middle",
    "a blue square on a white background, on the right",
    "a purple heart on a green background",
    "a teal circle on an orange background, at the bottom",
    "a large red cross on a white background",
    "a small white star on a blue background, on the left",
)


class Progress:
    """How far a phase is, by steps if their number is known, else by the clock; prints the loss now and then."""

    def __init__(self, name: str, seconds: float, steps: int | None, every_s: float = 5.0) -> None:
        self.name, self.seconds, self.steps, self.every_s = name, seconds, steps, every_s
        self.step = 0
        self.start = self._printed_at = time.monotonic()
        self._printed_step = 0
        self._sum: torch.Tensor | float = 0.0
        self.losses: list[float] = []

    @property
    def fraction(self) -> float:
        """0 at the start, 1 at the end."""
        done = self.step / self.steps if self.steps is not None else (time.monotonic() - self.start) / self.seconds
        return min(1.0, done)

    def add(self, loss: torch.Tensor) -> None:
        """Count one step; reading the loss off a GPU waits for it, so that happens only when it is printed."""
        self.step += 1
        self._sum = self._sum + loss.detach()
        now = time.monotonic()
        if now - self._printed_at >= self.every_s or self.fraction >= 1.0:
            count = self.step - self._printed_step
            self.losses.append(float(self._sum) / count)
            print(f"{self.name} {now - self.start:6.1f} s  step {self.step:6d}  loss {self.losses[-1]:.4f}", flush=True)
            self._printed_at, self._printed_step, self._sum = now, self.step, 0.0


class Average:
    """Exponential moving average of parameters, with a short memory at the start."""

    def __init__(self, parameters: list[torch.nn.Parameter], decay: float) -> None:
        self.parameters, self.decay, self.step = parameters, decay, 0
        self.shadow = [parameter.detach().clone() for parameter in parameters]

    @torch.no_grad()
    def update(self) -> None:
        """shadow += (parameter - shadow) * (1 - decay)"""
        self.step += 1
        torch._foreach_lerp_(
            self.shadow, [p.detach() for p in self.parameters], 1 - min(self.decay, self.step / (10 + self.step))
        )

    @torch.no_grad()
    def apply(self) -> None:
        """Put the averages in the parameters' place."""
        for parameter, shadow in zip(self.parameters, self.shadow, strict=True):
            parameter.copy_(shadow)


@dataclass(frozen=True)
class Setting:
    """What both phases share."""

    device: torch.device
    batch: int
    learning_rate: float
    generator: torch.Generator

    def autocast(self) -> Any:
        """bf16 on CUDA; on the CPU bf16 was no faster for these sizes, so float32."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def pictures(self) -> tuple[demo_data.Scene, torch.Tensor]:
        """A batch of scenes and their pictures [B, 3, 64, 64], channels_last."""
        scene = demo_data.draw_scenes(self.batch, self.device, self.generator)
        return scene, demo_data.draw_pictures(scene, self.generator).to(memory_format=torch.channels_last)

    def latents(self, vae: Any) -> tuple[int, ...]:
        """The shape of a batch of pictures encoded by ``vae``."""
        side = demo_data.RESOLUTION // 2 ** (len(vae.config.block_out_channels) - 1)
        return self.batch, vae.config.latent_channels, side, side

    def randn(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Normal noise, from the seeded generator."""
        return torch.randn(shape, device=self.device, generator=self.generator)


def _captured(step: Step, example: Batch) -> Step:
    """``step`` as a CUDA graph: launching such small models' kernels one by one takes several times as long."""
    static = tuple(tensor.clone() for tensor in example)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(static)

    def replay(batch: Batch) -> torch.Tensor:
        for buffer, tensor in zip(static, batch, strict=True):
            buffer.copy_(tensor)
        graph.replay()
        return loss

    return replay


def _optimise(
    setting: Setting,
    progress: Progress,
    parameters: list[torch.nn.Parameter],
    draw: Callable[[], Batch],
    loss_of: Callable[..., torch.Tensor],
) -> None:
    """AdamW with a warm-up of 2% and a cosine to nothing; leaves the averaged weights in ``parameters``.

    ``draw`` makes a batch, ``loss_of`` computes the loss of one.
    """
    on_gpu = setting.device.type == "cuda"
    rate = torch.zeros((), device=setting.device)  # a tensor, for a captured step to read
    optimiser = torch.optim.AdamW(
        parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.01, fused=on_gpu, capturable=on_gpu
    )
    average = Average(parameters, decay=0.999 if on_gpu else 0.99)  # a CPU does only some hundreds of steps

    def step(batch: Batch) -> torch.Tensor:
        with setting.autocast():
            loss = loss_of(*batch)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        return loss.detach()

    take_step = _captured(step, draw()) if on_gpu else step
    while (fraction := progress.fraction) < 1.0:
        cosine = 0.5 + 0.5 * math.cos(fraction * math.pi)
        rate.fill_(setting.learning_rate * min(1.0, (fraction + 1e-3) / 0.02) * cosine)
        loss = take_step(draw())
        average.update()
        progress.add(loss)
    average.apply()


def train_vae(vae: Any, setting: Setting, progress: Progress) -> None:
    """Absolute error of the picture plus a little KL, which keeps latents near a unit normal and the decoder used to
    noise.

    Sets the scaling factor that gives latents a standard deviation of 1.
    """
    vae.train().to(memory_format=torch.channels_last)

    def draw() -> Batch:
        return setting.pictures()[1], setting.randn(setting.latents(vae))

    def loss_of(pictures: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        posterior = vae.encode(pictures).latent_dist
        latents = posterior.mean + posterior.std * noise
        error = F.l1_loss(vae.decode(latents).sample.float(), pictures)
        mean, logvar = posterior.mean.float(), posterior.logvar.float()
        return error + KL_WEIGHT * 0.5 * (mean.square() + logvar.exp() - 1.0 - logvar).mean()

    _optimise(setting, progress, list(vae.parameters()), draw, loss_of)
    vae.eval().requires_grad_(False)
    with torch.no_grad():
        latents = vae.encode(setting.pictures()[1]).latent_dist.mean
        vae.register_to_config(scaling_factor=round(1.0 / float(latents.std()), 4))


def train_unet(models: dict[str, Any], setting: Setting, progress: Progress) -> None:
    """Mean squared error of the velocity, with the VAE frozen and the text encoder learning along."""
    vae, unet, text_encoder, tokenizer, scheduler = (
        models[name] for name in ("vae", "unet", "text_encoder", "tokenizer", "scheduler")
    )
    unet.train().to(memory_format=torch.channels_last)
    text_encoder.train()
    tokens = tokenizer(
        ["", *demo_data.captions()], padding="max_length", max_length=demo_architecture.MAX_TOKENS, truncation=True
    )
    token_table = torch.tensor(tokens["input_ids"], device=setting.device)  # row 0 is the empty prompt
    levels = scheduler.config.num_train_timesteps

    def draw() -> Batch:
        scene, pictures = setting.pictures()
        rows = torch.as_tensor(scene.index()) + 1
        dropped = torch.rand(rows.shape, device=setting.device, generator=setting.generator) < EMPTY_PROMPT_SHARE
        shape = setting.latents(vae)
        steps = torch.randint(levels, (setting.batch,), device=setting.device, generator=setting.generator)
        return pictures, token_table[torch.where(dropped, 0, rows)], setting.randn(shape), setting.randn(shape), steps

    def loss_of(
        pictures: torch.Tensor,
        tokens: torch.Tensor,
        latent_noise: torch.Tensor,
        noise: torch.Tensor,
        steps: torch.Tensor,
    ) -> torch.Tensor:
        with torch.no_grad():
            posterior = vae.encode(pictures).latent_dist
            latents = (posterior.mean + posterior.std * latent_noise).float() * vae.config.scaling_factor
        predicted = unet(scheduler.add_noise(latents, noise, steps), steps, text_encoder(tokens)[0]).sample
        return F.mse_loss(predicted.float(), scheduler.get_velocity(latents, noise, steps))

    _optimise(setting, progress, [*unet.parameters(), *text_encoder.parameters()], draw, loss_of)
    unet.eval().requires_grad_(False)
    text_encoder.eval().requires_grad_(False)


def train(arguments: argparse.Namespace) -> tuple[Any, dict[str, list[float]]]:
    """Both phases; the pipeline (float32, on the device) and the losses that were printed."""
    from diffusers import StableDiffusionPipeline
    from transformers import CLIPTokenizer

    torch.manual_seed(arguments.seed)
    device = torch.device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True  # every batch has the same shape
    batch = arguments.batch or (256 if device.type == "cuda" else 16)
    print(
        f"training on {torch.cuda.get_device_name(device) if device.type == 'cuda' else 'the CPU'}, batch {batch}",
        flush=True,
    )
    generator = torch.Generator(device).manual_seed(arguments.seed)
    setting = Setting(device, batch, arguments.rate, generator)

    demo_architecture.write_tokenizer(arguments.out / "tokenizer", demo_data.captions())
    tokenizer = CLIPTokenizer.from_pretrained(arguments.out / "tokenizer")
    models = {"tokenizer": tokenizer, "scheduler": demo_architecture.build_scheduler()}
    seconds = arguments.minutes * 60
    vae_progress = Progress("VAE ", seconds * VAE_SHARE, arguments.vae_steps)
    if arguments.resume:
        earlier = StableDiffusionPipeline.from_pretrained(
            arguments.resume, torch_dtype=torch.float32, safety_checker=None
        ).to(device)
        models |= {"vae": earlier.vae.requires_grad_(False), "unet": earlier.unet, "text_encoder": earlier.text_encoder}
    else:
        models |= {
            "vae": demo_architecture.build_vae().to(device),
            "unet": demo_architecture.build_unet().to(device),
            "text_encoder": demo_architecture.build_text_encoder(tokenizer).to(device),
        }
        # full-size pictures need more memory and time
        vae_setting = Setting(device, max(1, batch // 2), arguments.vae_rate, generator)
        train_vae(models["vae"], vae_setting, vae_progress)
    progress = Progress("UNet", seconds * (1.0 if arguments.resume else 1 - VAE_SHARE), arguments.steps)
    train_unet(models, setting, progress)
    pipeline = StableDiffusionPipeline(
        **models, safety_checker=None, feature_extractor=None, requires_safety_checker=False
    )
    return pipeline, {"vae": vae_progress.losses, "unet": progress.losses}


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "demo_model", help="the folder to write the pipeline to"
    )
    parser.add_argument("--archive", type=Path, help="also write the pipeline as one tar file")
    parser.add_argument("--samples", type=Path, help="the picture of samples (default: OUT_samples.png)")
    parser.add_argument("--minutes", type=float, default=4.0, help="time to train for")
    parser.add_argument(
        "--resume", type=Path, help="go on with the UNet and the text encoder of a pipeline that was trained before"
    )
    parser.add_argument("--vae-steps", type=int, help="train the VAE for so many steps, whatever time that takes")
    parser.add_argument("--steps", type=int, help="train the UNet for so many steps, whatever time that takes")
    parser.add_argument("--sample-steps", type=int, default=20)
    parser.add_argument(
        "--batch", type=int, help="pictures a step (default: 256 on CUDA, 16 on a CPU; the VAE takes half)"
    )
    parser.add_argument("--vae-rate", type=float, default=2e-4, help="the VAE's learning rate; 1e-3 got stuck")
    parser.add_argument("--rate", type=float, default=5e-4, help="the UNet's and the text encoder's learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="cuda or cpu (default: cuda where there is one)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Train, save, sample."""
    arguments = parse(argv)
    pipeline, _ = train(arguments)
    demo_architecture.save_pipeline(arguments.out, pipeline)
    size_mb = sum(path.stat().st_size for path in arguments.out.rglob("*.safetensors")) / 1e6
    print(f"wrote {arguments.out}: {size_mb:.2f} MB of weights", flush=True)
    if arguments.archive:
        arguments.archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(arguments.archive, "w") as archive:
            archive.add(arguments.out, arcname=arguments.out.name)
        print(f"wrote {arguments.archive}", flush=True)

    pipeline.to(dtype=torch.float32)  # from the fp16 weights that were saved
    pipeline.set_progress_bar_config(disable=True)
    generators = [torch.Generator().manual_seed(number) for number in range(len(SAMPLE_PROMPTS))]
    pictures = pipeline(
        list(SAMPLE_PROMPTS), num_inference_steps=arguments.sample_steps, guidance_scale=4.0, generator=generators
    ).images
    samples = arguments.samples or arguments.out.with_name(arguments.out.name + "_samples.png")
    draw_samples(SAMPLE_PROMPTS, pictures).save(samples)
    print(f"wrote {samples}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
