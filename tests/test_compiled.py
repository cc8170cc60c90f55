"""``compile`` and ``uninstall``: what they put on a module, and what they give back."""

from __future__ import annotations

import copy
import gc
import inspect
import json
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import sfast_core
from sfast_core import CompileConfig, CompiledModule, compile, uninstall
from tests.models import UNet

pytestmark = pytest.mark.usefixtures("no_gradients")

CPU = CompileConfig(allow_cpu=True)


def used(net: nn.Module | None = None) -> CompiledModule:
    """A compiled module with a trace."""
    handle = compile(net or UNet(), CPU)
    handle(*UNet.inputs()), handle(*UNet.inputs())
    assert handle.engine.report.calls == {"traced": 1, "fused": 1} and handle.engine.report.adopted_bytes
    return handle


# -- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("thing", "words"),
    [(None, "a NoneType"), ("unet", "a str"), (3, "an int"), (UNet, "the class UNet"), (lambda x: x, "a function")],
)
def test_only_a_module_can_be_compiled(thing: Any, words: str) -> None:
    with pytest.raises(TypeError, match=rf"compile\(module\): got {words}, needs a torch.nn.Module"):
        compile(thing)


def test_a_pipeline_is_told_what_compiles_it() -> None:
    pipeline = type("StableDiffusionPipeline", (type("DiffusionPipeline", (), {}),), {})()
    with pytest.raises(
        TypeError, match="got a StableDiffusionPipeline, .*: for a pipeline there is sfast_core.compile_pipeline"
    ):
        compile(pipeline)


def test_an_autoencoder_is_told_what_makes_its_methods_fast(caplog: pytest.LogCaptureFixture) -> None:
    class Autoencoder(nn.Module):
        def __init__(self, decoder: Any) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(4, 2), decoder

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return self.encoder(x)

        def decode(self, x: torch.Tensor) -> torch.Tensor:
            return self.decoder(x)

    compile(Autoencoder(nn.Linear(2, 4)))
    compile(Autoencoder(torch.tanh))
    compile(nn.Linear(4, 4))
    assert [record.getMessage().partition(" of this")[0] for record in caplog.records] == [
        "Fast Compile: encode() and decode()",
        "Fast Compile: encode()",
    ]
    assert "compile(module.encoder) and compile(module.decoder) make them fast" in caplog.records[0].getMessage()
    assert "goes past" in caplog.records[1].getMessage() and "makes it fast" in caplog.records[1].getMessage()


def test_only_a_config_configures() -> None:
    with pytest.raises(TypeError, match=r"compile\(config\): got a dict, needs a CompileConfig or None"):
        compile(UNet(), {"cuda_graphs": False})  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_not_compiled() -> None:
    with pytest.raises(
        TypeError, match=r"compile\(module\): got a .*, needs a torch.nn.Module whose forward is Python's"
    ):
        compile(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), CPU)


def test_compiling_again_gives_the_same_handle_with_the_new_config() -> None:
    handle = used()
    for thing in (handle, handle.module):
        assert compile(thing) is handle and compile(thing, CPU) is handle
    handle(*UNet.inputs())
    assert handle.engine.report.calls["fused"] == 2
    plain = CompileConfig(allow_cpu=True, adopt_weights=False)
    assert compile(handle, plain, name="mine") is handle
    assert handle.module.conv_in.weight.is_contiguous() and not handle.engine.report.signatures
    handle(*UNet.inputs()), handle(*UNet.inputs())
    report = handle.engine.report
    assert report.calls == {"traced": 2, "fused": 3} and (report.name, report.settings["adopt_weights"]) == (
        "mine",
        False,
    )
    assert not report.signatures[0].passes.get("pack_qkv")


# -- the handle ----------------------------------------------------------------------------------------------------


def test_the_handle_stands_for_the_module() -> None:
    handle = used()
    assert handle.conv_in is handle.module.conv_in and handle.training is False and handle.eval() is handle.module
    assert list(handle.state_dict()) == list(UNet().state_dict())
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = handle.nothing
    inputs = UNet.inputs()
    assert torch.equal(handle(*inputs), handle.module(*inputs))


def test_the_forward_tells_its_signature_and_name() -> None:
    net = UNet()
    signature = inspect.signature(net.forward)
    used(net)
    assert inspect.signature(net.forward) == signature and net.forward.__name__ == "forward"


def test_the_report_is_plain_data_and_text() -> None:
    handle = used()
    report = json.loads(json.dumps(handle.report().as_dict()))
    (module,) = report["modules"]
    assert module["name"] == "UNet" and module["device"] == "cpu" and module["calls"] == {"traced": 1, "fused": 1}
    (signature,) = module["signatures"]
    assert (
        signature["passes"]["fuse_linear"] == 4
        and signature["nodes_after"] < signature["nodes_before"]
        and signature["captures"] == 0
    )
    assert signature["impls"]["attention"] == {"reference": 4} and signature["refused"]["attention"]
    assert module["settings"]["allow_cpu"] is True and report["versions"]["torch"] == torch.__version__
    text = handle.report().text()
    assert str(handle.report()) == text, "print() shows it"
    for words in (
        "UNet on cpu",
        "1 traced, 1 fused",
        "fuse_linear 4",
        "attention: reference 4",
        "no graph: there is no CUDA device",
    ):
        assert words in text
    assert compile(nn.SiLU(), CPU, name="my net").report().modules[0].name == "my net"


# -- uninstall -----------------------------------------------------------------------------------------------------


def test_uninstall_gives_back_what_was_there() -> None:
    net = UNet()
    net.blocks[0].attn1.to_k.weight = nn.Parameter(torch.randn(32, 32).t())  # of other strides
    before = {
        name: (value.detach().clone(), value.stride(), value.requires_grad) for name, value in net.named_parameters()
    }
    inputs = UNet.inputs()
    expected, attributes = net(*inputs), set(net.__dict__)
    handle = used(net)
    assert not net.conv_in.weight.is_contiguous()
    assert handle.uninstall() is net and set(net.__dict__) == attributes and "forward" not in net.__dict__
    for name, value in net.named_parameters():
        old, stride, grad = before[name]
        assert (
            type(value) is nn.Parameter
            and torch.equal(value, old)
            and value.stride() == stride
            and value.requires_grad is grad
        ), name
        assert value.untyped_storage().nbytes() == value.nbytes, name
    result = net(*inputs)
    assert torch.equal(result, expected) and result.stride() == expected.stride()
    handle.uninstall()
    uninstall(net)
    assert set(net.__dict__) == attributes and torch.equal(used(net).uninstall()(*inputs), expected)


def test_a_call_that_was_on_its_way_leaves_no_layout_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    handle, inputs = used(), UNet.inputs()
    net, engine, expected = handle.module, handle.engine, UNet.forward(handle.module, *inputs)
    call = engine.call

    def meanwhile(*args: Any) -> Any:
        handle.uninstall()
        return call(*args)

    monkeypatch.setattr(engine, "call", meanwhile)
    torch.testing.assert_close(net(*inputs), expected, rtol=1e-4, atol=1e-5)
    assert all(weight.is_contiguous() for weight in net.parameters())
    assert not [program for on in engine.devices for program in on.entries.programs()]


def test_uninstall_takes_the_handle_too() -> None:
    """It did nothing, and said nothing."""
    handle = used()
    uninstall(handle)
    assert "forward" not in handle.module.__dict__


@pytest.mark.parametrize("thing", [5, None, UNet], ids=["a number", "None", "a class"])
def test_only_a_module_can_be_uninstalled(thing: Any) -> None:
    with pytest.raises(TypeError, match=r"uninstall\(module\): got (a|an|the) .*, needs a torch.nn.Module"):
        uninstall(thing)


def test_the_handle_shows_how_it_fares() -> None:
    handle = compile(UNet(), CPU)
    assert repr(handle) == "<CompiledModule UNet: nothing has run through it yet>"
    handle(*UNet.inputs()), handle(*UNet.inputs())
    assert repr(handle) == "<CompiledModule UNet: traced and fused, which makes nothing faster on a CPU>"


def test_an_instances_own_forward_is_compiled_and_comes_back() -> None:
    net = UNet()
    forward = net.forward = lambda *inputs: UNet.forward(net, *inputs) * 2  # type: ignore[method-assign]
    inputs = UNet.inputs()
    expected = net(*inputs)
    handle = used(net)
    torch.testing.assert_close(handle(*inputs), expected, rtol=1e-4, atol=1e-5)
    assert handle.uninstall().forward is forward and torch.equal(net(*inputs), expected)


def test_a_forward_that_somebody_has_put_there_since_stays() -> None:
    """Where it calls ours, that is the module's own by then."""
    net, inputs = UNet(), UNet.inputs()
    expected = net(*inputs)
    handle = used(net)
    ours = net.forward
    theirs = net.forward = lambda *args: ours(*args) * 2  # type: ignore[method-assign]
    torch.testing.assert_close(net(*inputs), expected * 2, rtol=1e-4, atol=1e-5)
    calls = handle.engine.report.calls.copy()
    handle.uninstall()
    assert net.forward is theirs and torch.equal(net(*inputs), expected * 2) and handle.engine.report.calls == calls
    again = compile(net, CPU)
    assert again is not handle
    for _ in range(2):
        torch.testing.assert_close(again(*inputs), expected * 2, rtol=1e-4, atol=1e-5)
    assert again.engine.report.calls == {"traced": 1, "fused": 1} and again.uninstall().forward is theirs
    net.forward = ours  # they take theirs off, and put back what they found
    assert torch.equal(net(*inputs), expected)
    assert "forward" not in used(net).uninstall().__dict__


def test_changes_made_while_compiled_stay() -> None:
    handle = used()
    handle.module.conv_in.weight.mul_(2)
    replaced = handle.module.blocks[0].attn1.to_q.weight = nn.Parameter(torch.randn(32, 32))
    expected = {name: value.clone() for name, value in handle.module.state_dict().items()}
    net = handle.uninstall()
    assert net.blocks[0].attn1.to_q.weight is replaced
    assert all(torch.equal(value, expected[name]) for name, value in net.state_dict().items())


# -- lifetime ------------------------------------------------------------------------------------------------------


def fails_to_fuse(net: nn.Module) -> CompiledModule:
    config = CompileConfig(allow_cpu=True)
    object.__setattr__(config, "disabled_passes", ("no such pass",))  # which a config refuses
    handle = compile(net, config)
    handle(*UNet.inputs()), handle(*UNet.inputs())
    return handle


def fails_to_trace(net: nn.Module) -> CompiledModule:
    net.forward = lambda x, *_: x * x.sum().item()  # type: ignore[method-assign]
    handle = compile(net, CPU)
    handle(*UNet.inputs()), handle(*UNet.inputs())
    return handle


@pytest.mark.parametrize(
    "use", [used, lambda net: compile(net, CPU), fails_to_fuse, fails_to_trace, lambda net: copy.deepcopy(used(net))]
)
def test_deleting_the_last_reference_frees_the_module_without_the_collector(use: Any) -> None:
    handle = use(UNet())
    net = handle if isinstance(handle, UNet) else handle.module
    alive = [
        weakref.ref(net),
        weakref.ref(net.blocks[0]),
        weakref.ref(net.conv_in.weight),
        weakref.ref(net.blocks[0].attn1.to_q.weight),
    ]
    gc.collect()
    gc.disable()
    try:
        del net, handle
        assert [ref() for ref in alive] == [None] * 4
    finally:
        gc.enable()


def test_the_module_lives_on_without_its_handle() -> None:
    net = UNet()
    used(net)
    inputs = UNet.inputs()
    torch.testing.assert_close(net(*inputs), UNet.forward(net, *inputs), rtol=1e-4, atol=1e-5)
    assert sfast_core.compile(net).engine.report.calls == {"traced": 1, "fused": 2}
    uninstall(net)
    assert "forward" not in net.__dict__
