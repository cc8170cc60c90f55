"""Apply Fast Compile (VAE): encode and decode, in one piece and in tiles, through the compiled halves."""

from __future__ import annotations

import asyncio
import copy
import gc
import weakref
from typing import Any
from unittest.mock import patch

import comfy.ldm.wan.vae
import comfy.model_management as management
import comfy.model_patcher
import comfy.sd
import tiny
import torch
from driver import PACK, assert_close, assert_differs, fast_compile
from part_tools import (
    Capturing,
    assert_parts_eager,
    assert_parts_fused,
    assert_refused,
    has_video_vae,
    part_calls,
    reports,
    tiny_autoencoder,
    vae,
    video_vae,
)
from scenario_tools import STEPS

_DECODER, _ENCODER = "VAE decoder (AutoencoderKL)", "VAE encoder (AutoencoderKL)"


def _node() -> Any:
    async def nodes() -> list[Any]:
        listed: list[Any] = await (await PACK.comfy_entrypoint()).get_node_list()
        return listed

    return next(kind for kind in asyncio.run(nodes()) if kind.GET_SCHEMA().node_id == "ApplyFastCompileVAE").execute


def _latent(height: int = 8, width: int = 8, batch: int = 1, seed: int = 3) -> torch.Tensor:
    return tiny.noise((batch, 4, height, width), seed)


def _picture(height: int = 64, width: int = 64, batch: int = 1, seed: int = 4) -> torch.Tensor:
    return tiny.noise((batch, height, width, 3), seed, 0.2).add(0.5).clamp(0, 1)


def scenario_decode_and_encode() -> None:
    for plain, kind in ((vae(), "AutoencoderKL"), (tiny_autoencoder(), "TAESD")):
        picture, latent = plain.decode(_latent()), plain.encode(_picture())
        fast = fast_compile.apply_vae(plain)
        first = fast.decode(_latent()), fast.encode(_picture())
        assert torch.equal(fast.decode(_latent()), first[0]) and torch.equal(fast.encode(_picture()), first[1]), (
            "not the same bits"
        )
        assert_close(first[0], picture)
        assert_close(first[1], latent)
        assert_parts_fused(plain.first_stage_model, traced=True)
        found = reports(plain.first_stage_model)
        assert set(found) == {f"VAE decoder ({kind})", f"VAE encoder ({kind})"}
        assert all(report.calls == {"traced": 1, "fused": 1} for report in found.values())


def scenario_shapes() -> None:
    """Odd sizes, batches, an earlier size again; what the host crops it crops as before."""
    plain = vae()
    fast = fast_compile.apply_vae(plain)
    sizes = [(8, 8, 1), (5, 11, 1), (8, 8, 2)]
    for _ in range(2):
        before = part_calls(plain.first_stage_model)
        for size in sizes:
            assert_close(fast.decode(_latent(*size)), vae().decode(_latent(*size)))
        picture = _picture(70, 93)
        assert_close(fast.encode(picture), vae().encode(picture))
    assert_parts_fused(plain.first_stage_model, before)


def scenario_a_batch_that_the_host_splits() -> None:
    """It computes as many pictures at once as fit into what is free."""
    plain, twin = vae(), vae()
    fast = fast_compile.apply_vae(plain)
    latent = _latent(batch=3)
    free = 2.5 * plain.memory_used_decode(latent.shape, plain.vae_dtype)
    with patch.object(
        management, "get_free_memory", lambda *_, torch_free_too=False, **__: (free, free) if torch_free_too else free
    ):
        expected = twin.decode(latent)
        fast.decode(latent)
        assert_close(fast.decode(latent), expected)
    assert [report.inputs for report in reports(plain.first_stage_model)[_DECODER].signatures][0].startswith(
        "float32[2"
    )


def scenario_tiles() -> None:
    plain = vae()
    fast = fast_compile.apply_vae(plain)
    latent, picture = _latent(20, 28), _picture(160, 224)
    decoded = plain.decode_tiled(latent, tile_x=16, tile_y=16, overlap=4)
    encoded = plain.encode_tiled(picture, tile_x=128, tile_y=128, overlap=32)
    for _ in range(2):
        before = part_calls(plain.first_stage_model)
        assert_close(fast.decode_tiled(latent, tile_x=16, tile_y=16, overlap=4), decoded)
        assert_close(fast.encode_tiled(picture, tile_x=128, tile_y=128, overlap=32), encoded)
    assert_parts_fused(plain.first_stage_model, before)


def scenario_out_of_memory_goes_to_tiles() -> None:
    """The host's own way out works behind the node."""
    plain = vae()
    fast, count = fast_compile.apply_vae(plain), [0]
    latent = _latent(66, 66)
    forward = type(plain.first_stage_model.decoder).forward

    def scarce(self: Any, z: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        count[0] += 1
        if z.shape[2] * z.shape[3] > 4300:
            raise management.OOM_EXCEPTION("none left")
        return forward(self, z, **kwargs)

    type(plain.first_stage_model.decoder).forward = scarce
    try:
        got, expected = fast.decode(latent), vae().decode(latent)
    finally:
        type(plain.first_stage_model.decoder).forward = forward
    assert count[0] > 2
    assert_close(got, expected)


def scenario_shapes_that_never_come_again() -> None:
    """Four are traced at once; then a new one waits until it comes again."""
    plain = vae()
    fast, twin = fast_compile.apply_vae(plain), vae()
    for width in range(5, 12):
        assert_close(fast.decode(_latent(5, width)), twin.decode(_latent(5, width)))
    calls = part_calls(plain.first_stage_model)
    assert calls["traced"] == 4 and calls["eager"] == 3 and any("keep changing" in reason for reason in calls), dict(
        calls
    )
    for _ in range(2):
        assert_close(fast.decode(_latent(5, 11)), twin.decode(_latent(5, 11)))
    since = part_calls(plain.first_stage_model) - calls
    assert since == {"traced": 1, "fused": 1}, dict(since)


def scenario_two_vaes() -> None:
    first, second = vae(), vae(seed=7)
    expected = first.decode(_latent()), second.decode(_latent())
    assert_differs(expected[0], expected[1])
    fast = fast_compile.apply_vae(first), fast_compile.apply_vae(second)
    for _ in range(2):
        for mine, theirs in zip(fast, expected, strict=True):
            assert_close(mine.decode(_latent()), theirs)
    assert_parts_fused(first.first_stage_model, traced=True), assert_parts_fused(second.first_stage_model, traced=True)


def scenario_the_incoming_vae_stays_as_it_was() -> None:
    plain = vae()
    model = plain.first_stage_model
    picture, latent = plain.decode(_latent()), plain.encode(_picture())
    attributes, callbacks, keys = dict(plain.__dict__), copy.deepcopy(plain.patcher.callbacks), list(model.state_dict())
    layout = {name: tensor.stride() for name, tensor in model.named_parameters()}
    fast = fast_compile.apply_vae(plain)
    for _ in range(2):
        fast.decode(_latent()), fast.encode(_picture())
        assert {name: tensor.stride() for name, tensor in model.named_parameters()} != layout, (
            "nothing was laid out: this proves nothing"
        )
        assert torch.equal(plain.decode(_latent()), picture) and torch.equal(plain.encode(_picture()), latent)
        assert {name: tensor.stride() for name, tensor in model.named_parameters()} == layout
    assert plain.__dict__ == attributes and plain.patcher.callbacks == callbacks
    assert (
        list(model.state_dict()) == keys
        and "forward" not in model.decoder.__dict__
        and not model.decoder._forward_pre_hooks
    )
    saved = fast.get_sd()
    assert list(saved) == keys and all(torch.equal(saved[name], value) for name, value in model.state_dict().items())


def scenario_the_node() -> None:
    apply, plain = _node(), vae()
    assert apply(plain, enabled=False).result[0] is plain
    expected = plain.decode(_latent())
    fast = apply(plain).result[0]
    fast.decode(_latent())
    assert_close(fast.decode(_latent()), expected)
    assert_parts_fused(plain.first_stage_model, traced=True)
    again = apply(fast, cuda_graphs=False).result[0]
    assert (
        type(again.first_stage_model) is type(fast.first_stage_model) and again.patcher.model is plain.first_stage_model
    )
    assert_close(again.decode(_latent()), expected)
    assert reports(plain.first_stage_model)[_DECODER].settings["cuda_graphs"] is False
    assert_refused(lambda: apply(None), "vae:")
    assert_refused(lambda: apply(object()), "vae:")
    assert_refused(lambda: apply(plain, settings={"capture_after": 2}), "settings:")


def scenario_a_checkpoint_without_a_vae() -> None:
    """The host's own message comes out."""
    none = comfy.sd.VAE(sd={})
    fast = fast_compile.apply_vae(none)
    try:
        fast.decode(_latent())
    except RuntimeError as error:
        assert "VAE is invalid" in str(error)
    else:
        raise AssertionError("it should have failed")


def scenario_what_other_nodes_do_with_its_model() -> None:
    """They read attributes, ask for the class, replace methods: it is the module for them."""
    plain = vae()
    model = plain.first_stage_model
    fast = fast_compile.apply_vae(plain)
    seen = fast.first_stage_model
    assert isinstance(seen, type(model)) and isinstance(seen, torch.nn.Module) and seen.decoder is model.decoder
    assert list(seen.parameters()) == list(model.parameters()) or next(seen.parameters()) is next(model.parameters())
    assert "decoder" in dir(seen) and repr(seen) == repr(model)
    seen.note = 5
    assert model.note == 5
    del seen.note
    assert not hasattr(model, "note")
    assert type(copy.deepcopy(seen)) is type(model) and type(copy.copy(seen)) is type(model)
    fast.decode(_latent()), fast.decode(_latent())
    before, decoder = part_calls(model), model.decoder
    expected = plain.decode(_latent())
    decoder.forward = lambda z, **kwargs: type(decoder).forward(decoder, z, **kwargs) * 0.5
    try:
        got, theirs = fast.decode(_latent()), plain.decode(_latent())
    finally:
        del decoder.forward
    assert torch.equal(got, theirs)
    assert_differs(got, expected)
    assert_parts_eager(model, "another node replaces its forward", before)
    fast.decode(_latent())
    assert_close(fast.decode(_latent()), expected)


def scenario_a_video() -> None:
    """Of several lengths, whole and in tiles: what a call keeps of its frames is not the next one's."""
    if not has_video_vae():
        return
    plain = video_vae()
    fast = fast_compile.apply_vae(plain)
    for _ in range(2):
        for frames in (3, 1, 2):
            latent = tiny.noise((1, 16, frames, 4, 4), frames)
            picture = plain.decode(latent)
            assert_close(fast.decode(latent), picture)
            assert_close(fast.encode(picture[0]), plain.encode(picture[0]))
    tiles = {"tile_x": 4, "tile_y": 4, "overlap": 2, "tile_t": 2, "overlap_t": 1}
    latent = tiny.noise((1, 16, 3, 6, 6), 9)
    assert_close(fast.decode_tiled(latent, **tiles), plain.decode_tiled(latent, **tiles))
    calls = reports(plain.first_stage_model)["VAE decoder (WanVAE)"]
    assert calls.calls["fused"] > calls.calls["traced"] and all(
        "keep changing" in reason for reason in calls.reasons
    ), calls.text()


def scenario_unknown_models_run_as_they_were() -> None:
    class Video(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = torch.nn.Conv3d(4, 3, 1)

        def decode(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.generator(x)
            return result

    plain, model = copy.copy(vae()), Video()
    plain.first_stage_model, plain.latent_dim = model, 3
    plain.patcher = comfy.model_patcher.ModelPatcher(model, torch.device("cpu"), torch.device("cpu"))
    latent = tiny.noise((1, 4, 2, 8, 8), 3)
    expected = plain.decode(latent)
    assert torch.equal(fast_compile.apply_vae(plain).decode(latent), expected)
    assert_parts_eager(model, "no encoder or decoder")


def scenario_an_error_surfaces() -> None:
    plain = vae()
    fast = fast_compile.apply_vae(plain)
    fast.decode(_latent())
    seen = []
    for one in (plain, fast, fast):
        try:
            one.decode(torch.zeros(1, 5, 8, 8))
        except Exception as error:
            seen.append((type(error), str(error)))
    assert len(seen) == 3 and len(set(seen)) == 1, seen
    fast.decode(_latent())
    before = part_calls(plain.first_stage_model)
    fast.decode(_latent())
    assert_parts_fused(plain.first_stage_model, before)


def scenario_nothing_is_left_when_it_goes() -> None:
    """Without the garbage collector, whoever decoded last, and the plain VAE outlives the fast one."""
    gc.collect()
    gc.disable()
    try:
        for last in ("fast", "plain", "failed"):
            plain = vae()
            expected = plain.decode(_latent())
            fast = fast_compile.apply_vae(plain)
            fast.decode(_latent()), fast.decode(_latent()), fast.encode(_picture())
            if last == "plain":
                plain.decode(_latent())
            elif last == "failed":
                # not through the host's decode, whose own frame the exception would hold, and that frame the exception
                try:
                    fast.first_stage_model.decode(torch.zeros(1, 5, 8, 8))
                except RuntimeError:
                    pass
            alive = weakref.ref(plain.first_stage_model), weakref.ref(fast), weakref.ref(fast.first_stage_model)
            del fast
            assert [ref() for ref in alive[1:]] == [None, None], f"the copy is still there ({last} last)"
            assert torch.equal(plain.decode(_latent()), expected)
            del plain
            management.unload_all_models()
            assert alive[0]() is None, f"the VAE is still there ({last} last)"
            assert fast_compile.states() == []
    finally:
        gc.enable()


def scenario_unloaded_and_loaded_again() -> None:
    plain = vae()
    fast = fast_compile.apply_vae(plain)
    fast.decode(_latent())
    quick = fast.decode(_latent())
    management.unload_all_models()
    before = part_calls(plain.first_stage_model)
    assert torch.equal(fast.decode(_latent()), quick)
    assert_parts_fused(plain.first_stage_model, before)


def scenario_graphs() -> None:
    """Captured at the second call, listed with the host's models, dropped with the VAE; a picture too large for it
    isn't captured.
    """
    with Capturing() as graphs:
        plain = vae()
        expected = plain.decode(_latent())
        fast = fast_compile.apply_vae(plain)
        for _ in range(STEPS):
            assert_close(fast.decode(_latent()), expected)
        report = reports(plain.first_stage_model)[_DECODER]
        assert report.calls == {"traced": 1, "replayed": STEPS - 1} and graphs.bytes and report.graph_bytes
        assert len(management.current_loaded_models) == 2, "the VAE and its graphs"
        fast.patcher.detach()  # as the host does when it needs the room
        assert graphs.bytes == 0
        assert_close(fast.decode(_latent()), expected)
        assert graphs.bytes and report.calls["replayed"] == STEPS
        management.unload_all_models()
        assert graphs.bytes == 0
        before = graphs.captures
        latent = _latent(72, 64)
        fast.decode(latent), fast.decode(latent)
        assert graphs.captures == before and "saves no time" in report.signatures[-1].not_captured_because
        fast.decode(_latent())
        assert graphs.bytes and report.settings["cuda_graphs"] is True
        plain.decode(_latent())
        assert graphs.bytes == 0, "the plain VAE runs: its weights and the memory are given back"
        assert_close(fast.decode(_latent()), expected)
        del fast, plain
        gc.collect()
        management.cleanup_models()
        assert graphs.bytes == 0
