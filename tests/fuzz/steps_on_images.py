"""Steps that go on from an image."""

from __future__ import annotations

from tests.fuzz.step import activation, step
from tests.fuzz.writer import IMAGE, TOKENS, VECTOR, Value, Writer


@step(IMAGE, 5)
def convolve(w: Writer, x: Value) -> None:
    given = w.channels()
    kernel = w.random.choice((1, 3, 3))
    settings = [f"padding={kernel // 2}", f"bias={w.chance(0.7)}"]
    size = x.size
    if kernel == 3 and w.chance(0.2) and isinstance(size, int) and size < 1:
        settings.append("stride=2")
        size += 1
    if w.chance(0.15):
        settings.append("groups=4")
    if kernel == 3 and w.chance(0.1):
        settings.append("padding_mode='circular'")
    layer = w.layer(f"nn.Conv2d({x.channels}, {given}, {kernel}, {', '.join(settings)})")
    y = w.let(f"{layer}({x.name})", x, given, size)
    if w.chance(0.4):
        w.let(activation(w, y.name), y)


@step(IMAGE, 4)
def group_norm(w: Writer, x: Value) -> None:
    groups, eps = w.random.choice((1, 2, 4)), w.choice("1e-5", "1e-6", "1e-3")
    y = f"{w.layer(f'nn.GroupNorm({groups}, {x.channels}, eps={eps}, affine={w.chance(0.85)})')}({x.name})"
    w.let(f"F.silu({y})" if w.chance(0.6) else y, x)


@step(IMAGE)
def odd_convolution(w: Writer, x: Value) -> None:
    c, given = x.channels, w.channels()
    layer, call = w.random.choice((
        (f"nn.Conv2d({c}, {given}, 3, padding='same')", "$(@)"), (f"nn.Conv2d({c}, {given}, 3, dilation=2, padding=2)", "$(@)"), (f"nn.Conv2d({c}, {given}, (1, 3), padding=(0, 1))", "$(@)"),
        (f"nn.Conv2d({c}, {given}, 3)", "$(F.pad(@, (1, 1, 1, 1)))"), (f"nn.Conv2d({c}, {given}, 2)", "$(F.pad(@, (0, 1, 0, 1)))"), (f"nn.Conv1d({c}, {given}, 3, padding=1)", "$(@.flatten(2)).unflatten(2, @.shape[2:])"),
        (f"nn.ConvTranspose2d({c}, {given}, 3, padding=1)", "$(@)"), (f"nn.Conv2d({c}, {given}, 3, padding=1)", "F.conv2d(@, $.weight * 0.5, $.bias, 1, 1)"),
        (f"nn.Conv2d({c}, {given}, 1)", "F.conv2d(@, $.weight, padding=0)"), (f"nn.Conv2d({c}, {given}, 3, padding=1, padding_mode='reflect')", "$(@)"),
        (f"nn.Linear({c}, {given})", "$(@.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)"), (f"nn.Linear({c}, {given})", "$(@.transpose(1, -1)).transpose(1, -1)"),
    ))
    w.let(call.replace("$", w.layer(layer)).replace("@", x.name), x, given, own=False)


@step(IMAGE)
def odd_norm(w: Writer, x: Value) -> None:
    c = x.channels
    w.let(w.choice(f"{w.layer(f'nn.BatchNorm2d({c})')}({x.name})", f"{w.layer(f'nn.InstanceNorm2d({c}, affine=True)')}({x.name})", f"F.group_norm({x.name}, 2)", f"F.layer_norm({x.name}, {x.name}.shape[1:])",
                   f"{w.layer(f'nn.LayerNorm({c})')}({x.name}.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)", f"F.group_norm({x.name}.flatten(2), 2).view_as({x.name})" if x.own and x.size == 0 else f"F.group_norm({x.name}, {c})",
                   f"({x.name} - {x.name}.mean((1, 2, 3), keepdim=True)) * torch.rsqrt({x.name}.var((1, 2, 3), keepdim=True, unbiased=False) + 1e-5)"), x, own=False)


@step(TOKENS)
def odd_norm_of_tokens(w: Writer, x: Value) -> None:
    c = x.channels
    w.let(w.choice(f"{x.name} * torch.rsqrt({x.name}.pow(2).mean(-1, keepdim=True) + 1e-6)", f"F.rms_norm({x.name}, ({c},), {w.parameter(c, plain=False)})", f"F.layer_norm({x.name}, ({c},), None, None, 1e-3)",
                   f"F.layer_norm({x.name}, ({c},), weight={w.parameter(c, plain=False)})", f"F.layer_norm({x.name}, ({c},), bias={w.parameter(c, plain=False)}, eps=1e-4)", f"F.group_norm({x.name}.transpose(1, 2), 2).transpose(1, 2)",
                   f"({x.name} - {x.name}.mean(-1, keepdim=True)) / ({x.name}.std(-1, keepdim=True) + 1e-3)", f"F.normalize({x.name}, dim=-1) * {c ** 0.5}", f"F.layer_norm({x.name}, {x.name}.shape[1:])"), x, own=False)


@step(IMAGE, 4)
def residual_block(w: Writer, x: Value) -> None:
    given = w.channels()
    norm, other = (w.layer(f"nn.GroupNorm(2, {c})") for c in (x.channels, given))
    first, second = w.layer(f"nn.Conv2d({x.channels}, {given}, 3, padding=1)"), w.layer(f"nn.Conv2d({given}, {given}, 3, padding=1)")
    h = w.let(f"{first}(F.silu({norm}({x.name})))", x, given, keep=False)
    if w.chance(0.6):
        h = w.let(f"{h.name} + {w.vector(given)}[:, :, None, None]", h, keep=False)
    elif w.chance(0.4):
        scale, shift = w.vector(given), w.vector(given)
        h = w.let(f"{h.name} * (1 + {scale}[..., None, None]) + {shift}[..., None, None]", h, keep=False)
    h = w.let(f"{second}(F.silu({other}({h.name})))", h, keep=False)
    shortcut = x.name if given == x.channels else f"{w.layer(f'nn.Conv2d({x.channels}, {given}, 1)')}({x.name})"
    w.let(w.choice(f"{h.name} + {shortcut}", f"{shortcut} + {h.name}", f"({shortcut} + {h.name}) / 1.5", f"torch.add({shortcut}, {h.name}, alpha=0.5)"), h)


@step(IMAGE)
def upsample(w: Writer, x: Value) -> None:
    if not isinstance(x.size, int) or x.size < 0:
        return
    mode = w.choice("mode='nearest'", "mode='nearest'", "mode='bilinear'", "mode='nearest-exact'")
    y = w.let(f"F.interpolate({x.name}, scale_factor=2.0, {mode})", x, size=x.size - 1)
    if w.chance(0.6):
        w.let(f"{w.layer(f'nn.Conv2d({y.channels}, {y.channels}, 3, padding=1)')}({y.name})", y)


@step(IMAGE)
def downsample(w: Writer, x: Value) -> None:
    if not isinstance(x.size, int) or x.size > 0:
        return
    w.let(w.choice(f"F.avg_pool2d({x.name}, 2)", f"F.max_pool2d({x.name}, 2)", f"{x.name}[:, :, ::2, ::2]", f"F.interpolate({x.name}, scale_factor=0.5, mode='nearest')"),
          x, size=x.size + 1, own=False)


@step(IMAGE, 1)
def shuffle_pixels(w: Writer, x: Value) -> None:
    if isinstance(x.size, int) and x.size < 1:
        y = w.let(f"F.pixel_unshuffle({x.name}, 2)", x, x.channels * 4, x.size + 1, keep=False)
        given = w.channels()
        w.let(f"{w.layer(f'nn.Conv2d({y.channels}, {given}, 1)')}({y.name})", y, given)


@step(IMAGE, 3)
def concatenate_channels(w: Writer, x: Value) -> None:
    other = w.pick(IMAGE, lambda value: value.size == x.size)
    if other is None:
        return
    joined, given = x.channels + other.channels, w.channels()
    y = w.let(f"torch.cat([{x.name}, {other.name}], {w.choice('1', 'dim=1', '-3')})", x, joined, keep=False)
    if w.chance(0.5):
        y = w.let(f"F.silu({w.layer(f'nn.GroupNorm(2, {joined})')}({y.name}))", y, keep=False)
    kernel = w.choice("1", "3, padding=1")
    w.let(f"{w.layer(f'nn.Conv2d({joined}, {given}, {kernel})')}({y.name})", y, given)


@step(IMAGE, 2)
def decoder_block(w: Writer, x: Value) -> None:
    """As a U-Net's: what it has beside what the encoder kept, read by a norm and by a shortcut."""
    other = w.pick(IMAGE, lambda value: value.size == x.size)
    if other is None:
        return
    joined, given = x.channels + other.channels, w.channels()
    cat = w.let(f"torch.cat([{x.name}, {other.name}], dim=1)", x, joined, keep=False)
    h = w.let(f"F.silu({w.layer(f'nn.GroupNorm(2, {joined})')}({cat.name}))", cat, keep=False)
    h = w.let(f"{w.layer(f'nn.Conv2d({joined}, {given}, 3, padding=1)')}({h.name}) + {w.vector(given)}[:, :, None, None]", cat, given, keep=False)
    h = w.let(f"{w.layer(f'nn.Conv2d({given}, {given}, 3, padding=1)')}(F.silu({w.layer(f'nn.GroupNorm(2, {given})')}({h.name})))", h, keep=False)
    w.let(f"{w.layer(f'nn.Conv2d({joined}, {given}, 1)')}({cat.name}) + {h.name}", h)


@step(IMAGE)
def gate_channels(w: Writer, x: Value) -> None:
    given = w.channels()
    y = w.let(f"{w.layer(f'nn.Conv2d({x.channels}, {2 * given}, 1)')}({x.name})", x, 2 * given, keep=False)
    a, b = w.name("v"), w.name("v")
    w.line(f"{a}, {b} = {y.name}." + w.choice("chunk(2, 1)", "chunk(2, dim=1)", f"split({given}, 1)", f"split([{given}, {given}], dim=1)", f"unflatten(1, (2, {given})).unbind(1)"))
    w.let(f"{a} * {activation(w, b)}", x, given)


@step(IMAGE)
def squeeze_and_excite(w: Writer, x: Value) -> None:
    pooled = w.choice(f"{x.name}.mean((2, 3))", f"F.adaptive_avg_pool2d({x.name}, 1).flatten(1)", f"{x.name}.flatten(2).mean(-1)", f"{x.name}.amax(dim=(-2, -1))")
    y = w.let(f"{w.linear(x.channels, x.channels)}({pooled})", x, kind=VECTOR)
    w.let(f"{x.name} * torch.sigmoid({y.name})[:, :, None, None]", x)


@step(IMAGE, 3)
def image_to_tokens(w: Writer, x: Value) -> None:
    w.let(w.choice(f"{x.name}.flatten(2).transpose(1, 2)", f"{x.name}.permute(0, 2, 3, 1).reshape({x.name}.shape[0], -1, {x.channels})",
                   f"{x.name}.view({x.name}.shape[0], {x.channels}, -1).permute(0, 2, 1).contiguous()" if x.own and x.size == 0 else f"{x.name}.flatten(2).mT",
                   f"torch.einsum('bchw->bhwc', {x.name}).flatten(1, 2)"), x, kind=TOKENS, size=f"image{x.size}", own=False)


@step(IMAGE, 1)
def attention_over_pixels(w: Writer, x: Value) -> None:
    c = x.channels
    q, k, v = (w.layer(f"nn.Conv2d({c}, {c}, 1)") for _ in "qkv")
    h = w.let(f"{w.layer(f'nn.GroupNorm(2, {c})')}({x.name})", x, keep=False)
    names = [w.name("v") for _ in "qkv"]
    for name, layer in zip(names, (q, k, v), strict=True):
        w.line(f"{name} = {layer}({h.name}).flatten(2).transpose(1, 2)")
    a = w.let(w.choice(f"F.scaled_dot_product_attention({names[0]}[:, None], {names[1]}[:, None], {names[2]}[:, None])[:, 0]",
                       f"torch.softmax({names[0]} @ {names[1]}.transpose(1, 2) * {c}**-0.5, -1) @ {names[2]}",
                       f"torch.bmm(torch.bmm({names[0]}, {names[1]}.transpose(1, 2)).mul({c}**-0.5).softmax(-1), {names[2]})"), x, keep=None)
    w.let(f"{x.name} + {a.name}.transpose(1, 2).reshape({x.name}.shape)", x)


@step(IMAGE, 1)
def pad_and_crop(w: Writer, x: Value) -> None:
    mode = w.choice("", ", mode='replicate'")
    w.let(f"F.pad({x.name}, (1, 2, 0, 1){mode})[:, :, :-1, 1:-2]", x, own=False)
