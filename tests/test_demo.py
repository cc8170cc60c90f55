"""The demo: the pictures it learned from, the training script, the shipped model, the picture it draws, and the whole
command.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import demo, demo_architecture, demo_data, demo_options, demo_picture, full_size

CPU = torch.device("cpu")
SHIPPED_LIMIT_BYTES = 12_000_000


def nearest_colour(rgb: np.ndarray) -> str:
    """The name of the colour that is closest to ``rgb`` [3] in 0..1."""
    return min(demo_data.COLOURS, key=lambda name: float(np.square(np.asarray(demo_data.COLOURS[name]) - rgb).sum()))


def centre_and_ground(picture: np.ndarray) -> tuple[str, str]:
    """The colours of the middle 8x8 pixels and of the four 6x6 corners of a picture [64, 64, 3] in 0..1."""
    corners = np.concatenate(
        [
            picture[rows, columns].reshape(-1, 3)
            for rows in (slice(0, 6), slice(-6, None))
            for columns in (slice(0, 6), slice(-6, None))
        ]
    )
    return nearest_colour(picture[28:36, 28:36].reshape(-1, 3).mean(axis=0)), nearest_colour(corners.mean(axis=0))


# -- the data ------------------------------------------------------------------------------------------------------


def test_each_caption_is_that_of_its_scene() -> None:
    texts = demo_data.captions()
    assert len(texts) == len(set(texts)) == demo_data.CAPTION_COUNT
    scene = demo_data.Scene(size=1, colour=0, shape=3, ground=5, place=2)
    number = scene.index()
    assert isinstance(number, int) and demo_data.scene_of(number) == scene
    assert texts[number] == "a small red star on a blue background, on the left"
    assert "an orange circle on a red background" in texts and "a small orange circle on an orange background" in texts


def test_the_drawn_colours_are_those_of_the_caption() -> None:
    generator = torch.Generator().manual_seed(0)
    scene = demo_data.draw_scenes(64, CPU, generator)
    assert bool((torch.as_tensor(scene.colour) != torch.as_tensor(scene.ground)).all())
    middle, large, circle = (
        list(demo_data.PLACES).index("in the middle"),
        list(demo_data.SIZES).index("large"),
        list(demo_data.SHAPES).index("circle"),
    )
    full = torch.full((64,), 1)
    scene = demo_data.Scene(
        size=full * large, colour=scene.colour, shape=full * circle, ground=scene.ground, place=full * middle
    )
    pictures = demo_data.draw_pictures(scene, generator)
    assert pictures.shape == (64, 3, 64, 64) and pictures.dtype == torch.float32
    assert float(pictures.min()) >= -1.0 and float(pictures.max()) <= 1.0
    names = list(demo_data.COLOURS)
    for number, picture in enumerate((pictures.permute(0, 2, 3, 1).numpy() + 1) / 2):
        expected = (
            names[int(torch.as_tensor(scene.colour)[number])],
            names[int(torch.as_tensor(scene.ground)[number])],
        )
        assert centre_and_ground(picture) == expected


@pytest.mark.parametrize("name", list(demo_data.SHAPES))
def test_every_shape_stays_near_its_radius_and_covers_part_of_the_picture(name: str) -> None:
    line = torch.linspace(-1.5, 1.5, 201)
    inside = demo_data.SHAPES[name](line[None, :].expand(201, 201), line[:, None].expand(201, 201)) < 0
    radius = torch.sqrt(line[None, :] ** 2 + line[:, None] ** 2)
    assert 0.1 < float(inside.float().mean()) * 9.0 / 4.0 < 0.8, "the area, as a share of the square of the radius"
    assert float(radius[inside].max()) < 1.25


def test_the_seed_decides_the_pictures() -> None:
    def draw(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return demo_data.draw_pictures(demo_data.draw_scenes(4, CPU, generator), generator)

    assert torch.equal(draw(3), draw(3)) and not torch.equal(draw(3), draw(4))


# -- the tokenizer and the training script -------------------------------------------------------------------------


def test_a_words_merges_are_not_changed_by_later_words() -> None:
    words = ["on", "one", "onion", "moon", "mono", "noon", "a"]
    ranks = {pair: number for number, pair in enumerate(demo_architecture.merges_for(words))}
    for word in words:
        pieces = [*word[:-1], word[-1] + "</w>"]
        while len(pieces) > 1:
            at = min(range(len(pieces) - 1), key=lambda i: ranks.get((pieces[i], pieces[i + 1]), len(ranks)))
            assert (pieces[at], pieces[at + 1]) in ranks, f"{word} stops at {pieces}"
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        assert pieces == [word + "</w>"]


def test_the_tokenizer_makes_one_piece_of_a_word(tmp_path: Path) -> None:
    CLIPTokenizer = pytest.importorskip("transformers").CLIPTokenizer
    demo_architecture.write_tokenizer(tmp_path, demo_data.captions())
    tokenizer = CLIPTokenizer.from_pretrained(tmp_path)
    ids = tokenizer(
        ["A red circle on a blue background, on the left", "", "zebra"], padding="max_length", max_length=77
    )["input_ids"]
    assert [len(row) for row in ids] == [77, 77, 77]
    words = tokenizer.convert_ids_to_tokens(ids[0])[1:12]
    assert words == [f"{word}</w>" for word in "a red circle on a blue background , on the left".split()]
    assert ids[0][0] == tokenizer.bos_token_id and set(ids[0][12:]) == {tokenizer.eos_token_id} == set(ids[1][1:])
    assert tokenizer.unk_token_id not in ids[2][1:6], "an unknown word is spelt out"


def test_two_training_steps_on_a_cpu_make_a_pipeline_that_loads(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    from benchmarks import train_demo_model

    out, archive = tmp_path / "model", tmp_path / "files" / "model.tar"
    common = ["--out", str(out), "--archive", str(archive), "--device", "cpu", "--batch", "4"]
    assert train_demo_model.main([*common, "--vae-steps", "2", "--steps", "2", "--sample-steps", "2"]) == 0
    with tarfile.open(archive) as tar:
        assert {"model/model_index.json", "model/unet/config.json", "model/tokenizer/vocab.json"} <= set(tar.getnames())
    assert Image.open(tmp_path / "model_samples.png").width > 4 * demo_picture.TILE
    pipeline = demo.load_pipeline(out, CPU)
    pictures = demo.make_pictures(pipeline, ["a red circle on a blue background"], 2, "test")
    assert pictures.shape == (1, 64, 64, 3) and np.isfinite(pictures).all()


def test_training_lowers_the_loss() -> None:
    from benchmarks import train_demo_model

    pytest.importorskip("diffusers")
    torch.manual_seed(0)
    setting = train_demo_model.Setting(CPU, 4, 3e-4, torch.Generator().manual_seed(0))
    progress = train_demo_model.Progress("VAE", 0.0, 12, every_s=0.0)
    vae = demo_architecture.build_vae()
    train_demo_model.train_vae(vae, setting, progress)
    assert len(progress.losses) == 12 and sum(progress.losses[-3:]) < 0.95 * sum(progress.losses[:3])
    assert vae.config.scaling_factor > 0 and not vae.training


# -- the shipped model ---------------------------------------------------------------------------------------------


def test_the_shipped_weights_are_small_and_half() -> None:
    load_file = pytest.importorskip("safetensors.torch").load_file
    files = sorted(demo.MODEL_FOLDER.rglob("*.safetensors"))
    assert [path.parent.name for path in files] == ["text_encoder", "unet", "vae"]
    assert sum(path.stat().st_size for path in files) <= SHIPPED_LIMIT_BYTES
    for path in files:
        assert {tensor.dtype for tensor in load_file(path).values()} == {torch.float16}
    text_keys = load_file(files[0]).keys()
    assert all(key.startswith("text_model.") for key in text_keys), "transformers 4 would start from random weights"


def test_the_shipped_model_draws_what_it_is_told() -> None:
    pytest.importorskip("diffusers")
    told = [
        ("red", "circle", "blue"),
        ("white", "square", "black"),
        ("green", "heart", "pink"),
        ("yellow", "triangle", "purple"),
        ("black", "cross", "orange"),
    ]
    prompts = [
        f"a large {colour} {shape} on a{'n' if ground == 'orange' else ''} {ground} background, in the middle"
        for colour, shape, ground in told
    ]
    pipeline = demo.load_pipeline(demo.MODEL_FOLDER, CPU)
    with torch.inference_mode():
        pictures = demo.make_pictures(pipeline, prompts, 16, "test")
    for (colour, shape, ground), picture in zip(told, pictures, strict=True):
        assert centre_and_ground(picture) == (colour, ground), f"{colour} {shape} on {ground}"


# -- the picture and the command -----------------------------------------------------------------------------------


def comparison(**changes: object) -> demo_picture.Comparison:
    """Two grey 8x8 pictures, equal but for one pixel of the second."""
    eager = np.full((2, 8, 8, 3), 0.5, dtype=np.float32)
    fast = eager.copy()
    fast[1, 0, 0, 1] += 4 / 255
    values: dict[str, object] = {
        "title": "Title",
        "prompts": ["one", "a longer prompt that needs two lines or three"],
        "eager": eager,
        "fast": fast,
    }
    return demo_picture.Comparison(**(values | changes))  # type: ignore[arg-type]


def test_the_difference_is_scaled_to_be_seen() -> None:
    shown = comparison()
    assert shown.largest_difference == pytest.approx(4.0, abs=1e-3) and shown.factor == 32
    assert shown.mean_difference == pytest.approx(4.0 / (2 * 64 * 3), rel=1e-3)
    assert comparison(fast=shown.eager).factor == 1024


def test_the_comparison_shows_every_row() -> None:
    picture = np.asarray(demo_picture.draw_comparison(comparison(eager_seconds=2.0, fast_seconds=1.0)))
    left = demo_picture.MARGIN + demo_picture.LABEL + demo_picture.TILE + demo_picture.GAP  # the second column
    column = picture[:, left + 5]  # within the pixel that differs; pictures are enlarged from 8 to TILE
    grey = np.abs(column.astype(int) - 128).max(axis=1) <= 1
    assert int(grey.sum()) >= demo_picture.TILE + demo_picture.TILE * 7 // 8, (
        "the eager picture, and the fast one but for its pixel"
    )
    scaled = np.abs(column.astype(int) - [0, 128, 0]).max(axis=1) <= 1
    assert demo_picture.TILE // 8 - 2 <= int(scaled.sum()) <= demo_picture.TILE // 8 + 2, (
        "the pixel that differs, 4 levels times 32"
    )


def test_the_comparison_grows_with_its_table_and_rejects_wrong_shapes() -> None:
    low = demo_picture.draw_comparison(comparison())
    high = demo_picture.draw_comparison(comparison(table=[("UNet", "eager"), ("SDXL", "1.00 ms")], notes=["a note"]))
    assert high.width == low.width and high.height > low.height + 40
    with pytest.raises(ValueError, match="2 prompts"):
        demo_picture.draw_comparison(comparison(fast=np.zeros((1, 8, 8, 3), dtype=np.float32)))


def test_a_fault_is_found() -> None:
    class Module:
        name, calls, reasons = "UNet", {"eager": 3}, {"no reason": 3}

    class Report:
        modules = [Module()]

    eager = np.linspace(0, 1, 2 * 8 * 8 * 3, dtype=np.float32).reshape(2, 8, 8, 3)
    assert demo.find_faults(comparison(eager=eager, fast=eager), Report()) == ["UNet ran eager only: no reason"]
    Module.calls = {"traced": 1, "fused": 2}
    assert demo.find_faults(comparison(eager=eager, fast=eager), Report()) == []
    assert len(demo.find_faults(comparison(eager=eager, fast=np.zeros_like(eager)), Report())) == 2
    assert demo.find_faults(comparison(eager=eager, fast=eager * np.nan), Report())


def test_a_missing_model_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "MODEL_FOLDER", tmp_path)
    assert demo.main(["--device", "cpu", "--out", str(tmp_path)]) == 1
    assert f"WRONG: there is no model in {tmp_path}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "given", "words"),
    [
        ("--steps", "0", "got '0', needs a whole number from 1 on"),
        ("--steps", "many", "got 'many', needs"),
        ("--device", "tpu", "invalid choice: 'tpu'"),
        ("--out", __file__, "can't be made: File exists"),
    ],
)
def test_a_wrong_option_is_said_before_anything_is_installed(
    option: str, given: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """``install.py`` asks this first."""
    with pytest.raises(SystemExit) as ended:
        demo_options.parse([option, given])
    assert ended.value.code == 2 and words in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_isnt_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--device", "cuda", "--out", str(tmp_path)]) == 1
    assert "PyTorch sees no NVIDIA GPU here" in capsys.readouterr().out


def test_the_full_size_unets_have_their_published_sizes() -> None:
    pytest.importorskip("diffusers")
    counts = [
        sum(p.numel() for p in full_size.build_unet(m.config, torch.device("meta"), torch.float16).parameters())
        for m in full_size.MODELS
    ]
    assert counts == [859_520_964, 2_567_463_684]
    assert torch.get_default_dtype() == torch.float32


def test_the_full_size_inputs_fit_their_unet() -> None:
    pytest.importorskip("diffusers")
    small = {
        "sample_size": 16,
        "block_out_channels": (32, 32, 32),
        "transformer_layers_per_block": 1,
        "attention_head_dim": 2,
        "cross_attention_dim": 64,
    }
    for model in full_size.MODELS:
        config = {**model.config, **small}
        if len(config.get("down_block_types", ())) != 3:
            config.update(
                down_block_types=("CrossAttnDownBlock2D",) * 2 + ("DownBlock2D",),
                up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 2,
            )
        unet = full_size.build_unet(config, CPU, torch.float32)
        with torch.no_grad():
            out = unet(**full_size.inputs_for(unet, CPU, torch.float32))[0]
        assert out.shape == (2, 4, 16, 16) and 0.01 < float(out.std()) < 10.0


def test_the_demo_writes_its_picture_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("diffusers")
    assert demo.main(["--device", "cpu", "--steps", "3", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "There is no GPU here" in said and "speed-up" not in said
    assert "unet on cpu: traced and fused" in said and "By size:" in said, "the report says how the calls ran"
    picture = Image.open(tmp_path / demo.PICTURE_NAME)
    assert picture.width > len(demo.PROMPTS) * demo_picture.TILE and picture.height > 3 * demo_picture.TILE
