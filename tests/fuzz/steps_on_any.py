"""Steps that go on from a vector, or from any value."""

from __future__ import annotations

from tests.fuzz.step import activation, any_kind, step
from tests.fuzz.writer import IMAGE, VECTOR, Value, Writer


@step(VECTOR, 2)
def embed(w: Writer, x: Value) -> None:
    given = w.channels()
    w.let(f"{w.linear(2 * given, given)}(F.silu({w.linear(x.channels, 2 * given)}({x.name})))", x, given)


@any_kind(3)
def combine(w: Writer, x: Value) -> None:
    other = w.partner(x)
    if other is not None:
        a, b = x.name, other.name
        w.let(w.choice(f"{a} + {b}", f"{a} - {b}", f"{a} * {b}", f"torch.lerp({a}, {b}, 0.3)", f"torch.maximum({a}, {b})", f"torch.where({a} > {b}, {a}, {b} * 0.5)",
                       f"torch.stack([{a}, {b}]).mean(0)", f"{a}.add({b}, alpha=2)", f"{a} + {b} * 0.5", f"torch.cat([{a}[:1], {b}[1:]])", f"({a}, {b})[{w.attribute('1')}]"), x, own=False)


@any_kind(2)
def pointwise(w: Writer, x: Value) -> None:
    w.let(activation(w, x.name), x)


@any_kind(2)
def scale(w: Writer, x: Value) -> None:
    n = w.attribute(w.choice("0.5", "2", "1.0", "-1.5", "0"))
    w.let(w.choice(f"{x.name} * {n}", f"{n} * {x.name}", f"{x.name} + {n}", f"{n} - {x.name}", f"{x.name}.mul({n})", f"{x.name}.clamp(-2.0, 2.0) - {n}", f"torch.rsub({x.name}, {n})"), x)


@any_kind(2)
def branch(w: Writer, x: Value) -> None:
    on = w.attribute(w.choice("True", "False", "None", "'fast'", "{'on': True}", "[]"))
    made = activation(w, x.name)
    w.let(f"{made} if {on} else {x.name} * 1", x)


@any_kind(1)
def repeat(w: Writer, x: Value) -> None:
    layers = (f"nn.Conv2d({x.channels}, {x.channels}, 1)", f"nn.GroupNorm(2, {x.channels})") if x.kind == IMAGE else (f"nn.Linear({x.channels}, {x.channels})", f"nn.LayerNorm({x.channels})")
    blocks = w.layer(f"nn.ModuleList(nn.Sequential({layers[1]}, nn.SiLU(), {layers[0]}) for _ in range(2))")
    y = w.let(f"{x.name} * 1", x, keep=False)
    w.line(f"for block in {blocks}:")
    w.line(f"    {y.name} = {y.name} + block({y.name})")
    w.values.append(y)


@any_kind(3)
def write_in_place(w: Writer, x: Value) -> None:
    y = w.let(w.choice(f"{x.name}.clone()", f"{x.name} * 1", f"torch.empty_like({x.name}).copy_({x.name})", f"{x.name} + 0.5"), x, keep=False)
    other = w.partner(x)
    z = other.name if other is not None else "0.5"
    half = x.channels // 2
    part = f"[:, :{half}]" if x.kind == IMAGE else f"[..., :{half}]"
    rest = f"[:, {half}:]" if x.kind == IMAGE else f"[..., {half}:]"
    one = f"{z}{part}" if other is not None else z
    for _ in range(w.random.choice((1, 1, 2, 3))):
        w.line(w.choice(
            f"{y.name} += {z}", f"{y.name} *= {z}", f"{y.name}.add_({z}, alpha=2)", f"{y.name}.mul_(0.5).add_(1)", f"{y.name}{part} += {one}", f"{y.name}{part} = {one}",
            f"{y.name}{part} *= 2", f"{y.name}{rest} = {y.name}{part}", f"{y.name}[0] = 0", f"{y.name}[:, ::2] = -{y.name}[:, ::2]", f"{y.name}.clamp_(-1, 1)",
            f"F.relu({y.name}, inplace=True)", f"{y.name}[..., 0] -= 1", f"{y.name}.masked_fill_({y.name} > 1, 0.25)", f"{y.name}.sub_({y.name}.mean(1, keepdim=True))",
            f"torch.sigmoid_({y.name})", f"{y.name}.tanh_()", f"{y.name}.fill_(0.5)", f"{y.name}[:1] = {y.name}[:1] * 2", f"{y.name}[..., -1:] = {y.name}[..., :1]",
            f"{y.name}.copy_({z if other is not None else x.name})", f"F.silu({y.name}, inplace=True)", f"{y.name}.lerp_({x.name}, 0.5)", f"{y.name}.addcmul_({x.name}, {x.name})",
        ))
    w.values.append(y)


@any_kind(2)
def write_then_view(w: Writer, x: Value) -> None:
    """Views of what is written to afterwards, read only from the view that was written through; and what is written to behind them."""
    y = w.let(f"{x.name} * 1", x, keep=False)
    part = w.name("v")
    view = w.choice("[:, 1:3]", ".transpose(1, 2)", "[:1]", "[..., ::2]", ".unsqueeze(0)", ".narrow(1, 0, 2)", ".select(1, 0)")
    w.line(f"{part} = {y.name}{view}")
    if w.chance(0.8):  # the view is what is read then
        w.line(w.choice(f"{part}.mul_(2)", f"{part}.add_({part}.mean())", f"{part} += 1", f"{part}.clamp_(-1, 1).neg_()"))
        w.let(f"{x.name} + {part}.mean()", x)
    else:  # what it is a view of
        w.line(w.choice(f"{y.name}.mul_(2)", f"{y.name}[:, 1] = 3"))
        w.let(w.choice(f"{y.name} * 2", f"{y.name} - {y.name}{view}.mean()"), x)


@any_kind(1)
def write_to_it(w: Writer, x: Value) -> None:
    """To what others have read already, and read later."""
    if x.own and w.chance(0.5):
        w.line(w.choice(f"{x.name}.mul_(0.5)", f"{x.name} += 0.25", f"{x.name}.add_({x.name}.mean())", f"F.relu({x.name}, True)", f"{x.name}[:1] = 0.5", f"torch.tanh_({x.name})"))


@any_kind(1)
def broadcast(w: Writer, x: Value) -> None:
    at = "[:, None, None]" if x.kind == IMAGE else ""
    n = w.parameter(x.channels)
    one = w.parameter(1)
    w.let(w.choice(f"{x.name} * {n}{at}", f"{x.name} + {n}{at}", f"{n}{at} * {x.name} + {n}{at}", f"{x.name} * {one}", f"{one} + {x.name}", f"torch.addcmul({x.name}, {x.name}, {n}{at}, value=0.5)",
                   f"{x.name} - {x.name}.mean(0, keepdim=True)", f"{x.name} / {x.name}.abs().amax((1, 2), keepdim=True).clamp(min=0.1)", f"{x.name}[:1] + {x.name}", f"{x.name} + {x.name}[..., :1]"), x)


@any_kind(1)
def write_through_a_view(w: Writer, x: Value) -> None:
    """Not followed where what it is a view of is read then: such a forward runs as it was."""
    if w.chance(0.97):
        return
    y = w.let(f"{x.name} * 1", x, keep=False)
    w.line(f"{y.name}{w.choice('[:, 1:3]', '.transpose(1, 2)', '[:1]', '[..., ::2]', '.unsqueeze(0)', '.narrow(1, 0, 2)', '.select(1, 0)', '.detach()')}.{w.choice('mul_(2)', 'neg_()', 'fill_(0.5)')}")
    w.let(f"{y.name} * 2", x)


@any_kind(1)
def cast(w: Writer, x: Value) -> None:
    y = w.let(f"{x.name}.{w.choice('double()', 'to(torch.float64)', 'type(torch.float64)')}", x, keep=None)
    w.let(f"({y.name} * 2 - 1).{w.choice(f'to({x.name}.dtype)', f'type_as({x.name})', f'to({x.name})')}", x)


@any_kind(1)
def select(w: Writer, x: Value) -> None:
    w.let(w.choice(f"torch.where({x.name} > 0, {x.name}, 0.1 * {x.name})", f"{x.name}.masked_fill({x.name} < -1, -1.0)", f"{x.name} * ({x.name} > 0).to({x.name}.dtype)", f"{x.name}.clamp(min=-0.5)",
                   f"torch.nan_to_num({x.name} / ({x.name} * 0 + 1))", f"{x.name}.abs().sqrt()", f"torch.square({x.name}) - 1", f"{x.name}.softmax(-1)", f"{x.name}.sort(dim=-1).values",
                   f"{x.name} - {x.name}.amax(-1, keepdim=True)", f"F.normalize({x.name}, dim=1)"), x)


@any_kind(1)
def lay_out(w: Writer, x: Value) -> None:
    at = 1 if x.kind == IMAGE else 2  # where the channels are
    options = [f"{x.name}.contiguous()", f"{x.name}.transpose(1, 2).contiguous().transpose(1, 2)", f"{x.name}.clone()", f"{x.name}.detach()", f"{x.name}.view_as({x.name})",
               f"{x.name}.unsqueeze(1).squeeze(1)", f"{x.name}.expand({', '.join(['-1'] * (4 if x.kind == IMAGE else 3))})", f"{x.name}.unflatten({at}, (-1, 2)).flatten({at}, {at + 1})",
               f"torch.cat([{x.name}[:, :1], {x.name}[:, 1:]], 1)", f"{x.name}.repeat(1, 1, 2{', 1' if x.kind == IMAGE else ''}).chunk(2, 2)[0]", f"torch.stack({x.name}.unbind(1), 1)"]
    if x.kind == IMAGE:
        options += [f"{x.name}.contiguous(memory_format=torch.channels_last)"] * 3 + [f"{x.name}.to(memory_format=torch.channels_last)"]
    w.let(w.choice(*options), x, own=False)
