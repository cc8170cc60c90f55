"""What random modules are made of: each step adds lines to a forward and values to go on from."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.writer import IMAGE, TOKENS, VECTOR, Value, Writer

Step = Callable[[Writer, Value], object]
STEPS: list[tuple[str, int, Step]] = []  #: the kind of value that it starts from, how often it comes, and the step


def step(kind: str, weight: int = 2) -> Callable[[Step], Step]:
    def add(function: Step) -> Step:
        STEPS.append((kind, weight, function))
        return function

    return add


def activation(w: Writer, x: str) -> str:
    kind = w.choice("F.silu($)", "F.gelu($)", "F.gelu($, approximate='tanh')", "torch.relu($)", "$.tanh()", "torch.sigmoid($)", "F.silu($)", "F.leaky_relu($, 0.2)",
                    "$ * torch.sigmoid($)", "F.softplus($)", "F.elu($)", "$.sigmoid().mul($)", "F.hardswish($)", "F.mish($)", "$ / (1 + $.abs())")
    return kind.replace("$", x)


# -- on images -----------------------------------------------------------------------------------------------------------------


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


# -- on tokens -----------------------------------------------------------------------------------------------------------------


@step(TOKENS, 4)
def project(w: Writer, x: Value) -> None:
    given = w.channels()
    y = f"{w.linear(x.channels, given)}({x.name})"
    w.let(activation(w, y) if w.chance(0.3) and "$" not in y and y.count("(") < 3 else y, x, given)


@step(TOKENS, 4)
def layer_norm(w: Writer, x: Value) -> None:
    c = x.channels
    norm = w.choice(f"nn.LayerNorm({c})", f"nn.LayerNorm({c}, eps=1e-6, elementwise_affine=False)", f"nn.RMSNorm({c}, eps=1e-6)", f"nn.LayerNorm({c}, bias=False)")
    y = w.let(f"{w.layer(norm)}({x.name})", x)
    if w.chance(0.4):
        w.let(f"{y.name} * (1 + {w.vector(c)}[:, None]) + {w.vector(c)}[:, None]", y)


@step(TOKENS, 2)
def add_and_norm(w: Writer, x: Value) -> None:
    other = w.partner(x)
    if other is None:
        return
    added = other.name if w.chance(0.5) else f"{w.vector(x.channels)}.unsqueeze(1) * {other.name}"
    total = w.let(f"{x.name} + {added}", x)
    w.let(f"{w.layer(f'nn.LayerNorm({x.channels})')}({total.name})", x)


@step(TOKENS, 6)
def attend(w: Writer, x: Value) -> None:
    attention(w, x, x)


@step(TOKENS, 3)
def attend_to_others(w: Writer, x: Value) -> None:
    other = w.pick(TOKENS, lambda value: value.size != x.size)
    if other is not None:
        attention(w, x, other)


def attention(w: Writer, x: Value, context: Value) -> None:
    """Queries of one, keys and values of the other, written in one of the ways in which models write it."""
    heads = w.random.choice((1, 2, 4))
    width = 8 * heads if w.chance(0.5) else max(x.channels, 4 * heads)
    depth = width // heads
    normed = f"{w.layer(f'nn.LayerNorm({x.channels})')}({x.name})" if w.chance(0.5) else x.name
    h = w.let(normed, x, keep=False) if normed != x.name else x
    source = h if context is x else context
    q, k, v = (w.name("v") for _ in "qkv")
    if context is x and w.chance(0.4):
        packed = w.linear(x.channels, 3 * width)
        way = w.choice("chunk", "view", "reshape", "unflatten")
        if way == "chunk":
            w.line(f"{q}, {k}, {v} = {packed}({h.name}).{w.choice('chunk(3, -1)', 'chunk(3, dim=2)', f'split({width}, dim=-1)')}")
            split_heads(w, (q, k, v), x, source, heads, depth)
        else:
            shape = f"{h.name}.shape[0], {h.name}.shape[1], 3, {heads}, {depth}"
            y = f"{packed}({h.name})"
            y = f"{y}.unflatten(-1, (3, {heads}, {depth}))" if way == "unflatten" else f"{y}.{way}({shape})"
            w.line(f"{q}, {k}, {v} = {y}.{w.choice('permute(2, 0, 3, 1, 4).unbind(0)', 'permute(2, 0, 3, 1, 4)', 'transpose(1, 3).unbind(2)')}")
    else:
        for name, value in ((q, h), (k, source), (v, source)):
            w.line(f"{name} = {w.linear(value.channels, width, bias=w.chance(0.5))}({value.name})")
        split_heads(w, (q, k, v), x, source, heads, depth)
    if w.chance(0.3):
        norm = w.choice(f"nn.RMSNorm({depth}, eps=1e-6)", f"nn.LayerNorm({depth})")
        for name in (q, k):
            w.line(f"{name} = {w.layer(norm)}({name})")
    if w.chance(0.3) and depth % 2 == 0:
        rotate(w, q, k, depth)
    mask = masked(w, q, k) if w.chance(0.3) else ""
    way = w.choice("sdpa", "sdpa", "sdpa", "matmul", "matmul", "einsum", "scaled", "causal", "flags")
    if way == "matmul":
        n = depth ** -0.5
        scores = w.choice(f"({q} @ {k}.transpose(-1, -2)) * {n}", f"torch.matmul({q}, {k}.mT) / {1 / n}", f"({q} * {n}) @ {k}.mT", f"{q} @ ({k} * {n}).transpose(2, 3)", f"({q} * {n ** 0.5}) @ ({k} * {n ** 0.5}).mT",
                          f"({q} @ {k}.mT).mul({n})", f"({q} @ {k}.mT)")
        scores = f"{scores}{f' + {mask}' if mask else ''}"
        probabilities = w.choice(f"torch.softmax({scores}, dim=-1)", f"({scores}).softmax(dim=3)", f"F.softmax({scores}, -1)", f"({scores}).softmax(-2)", f"({scores}).float().softmax(-1).to({v}.dtype)",
                                 f"F.dropout(({scores}).softmax(-1), 0.3, self.training)")
        out = f"{probabilities} @ {v}"
    elif way == "einsum":
        out = f"torch.einsum('bhqk,bhkd->bhqd', (torch.einsum('bhqd,bhkd->bhqk', {q}, {k}) * {depth ** -0.5}{f' + {mask}' if mask else ''}).softmax(-1), {v})"
    elif way == "flags":
        flags = w.choice(f"torch.arange({k}.shape[2]) % 3 != 1", f"torch.ones({q}.shape[2], {k}.shape[2], dtype=torch.bool).tril()", f"{q}.mean(-1, keepdim=True) > -{k}.mean(-1)[:, :, None].abs() - 9.0")
        out = f"F.scaled_dot_product_attention({q}, {k}, {v}, attn_mask={flags}{'' if 'ones' in flags or 'mean' in flags else '[None, None, None]'})".replace("attn_mask=torch.arange", "attn_mask=(torch.arange")
        out = out.replace("!= 1[", "!= 1)[")
    elif way == "causal" and context is x:
        out = f"F.scaled_dot_product_attention({q}, {k}, {v}, is_causal=True)"
    else:
        options = (f", attn_mask={mask}" if mask else "") + (", scale=0.4" if way == "scaled" else "")
        out = f"F.scaled_dot_product_attention({q}, {k}, {v}{options})"
    y = w.let(out, x, keep=None)
    y = w.let(w.choice(f"{y.name}.transpose(1, 2).reshape({x.name}.shape[0], -1, {width})", f"{y.name}.transpose(1, 2).flatten(2)",
                       f"{y.name}.permute(0, 2, 1, 3).contiguous().view({x.name}.shape[0], {x.name}.shape[1], {width})"), x, width, keep=False)
    y = w.let(f"{w.linear(width, x.channels)}({y.name})", x, keep=False)
    if w.chance(0.3):
        w.let(f"{x.name} + {w.vector(x.channels)}[:, None] * {y.name}", x)
    else:
        w.let(w.choice(f"{x.name} + {y.name}", f"{y.name} + {x.name}", y.name), x)


def split_heads(w: Writer, names: tuple[str, ...], x: Value, source: Value, heads: int, depth: int) -> None:
    way = w.choice("view", "reshape", "unflatten")
    for name, value in zip(names, (x, source, source), strict=True):
        shaped = f"{name}.unflatten(-1, ({heads}, {depth}))" if way == "unflatten" else f"{name}.{way}({value.name}.shape[0], -1, {heads}, {depth})"
        if w.choice("a", "b") == "a" and way == "view":
            shaped = f"{name}.view({value.name}.shape[0], {value.name}.shape[1], {heads}, {depth})"
        w.line(f"{name} = {shaped}.transpose(1, 2)" if way != "reshape" else f"{name} = {shaped}.permute(0, 2, 1, 3)")


def rotate(w: Writer, q: str, k: str, depth: int) -> None:
    """Rotary embeddings of queries and keys [B, H, L, D], in the ways in which models spell them."""
    angles, half = w.name("v"), depth // 2
    w.line(f"{angles} = torch.arange(max({q}.shape[2], {k}.shape[2]), device=x.device, dtype=x.dtype)[:, None] * {w.parameter(half, plain=False)}")
    way = w.choice("halves", "pairs", "columns", "columns in place", "cosines", "cosines of halves")
    tokens_first = w.chance(0.3)
    for name in (q, k):
        here = f"{angles}[:{name}.shape[2]]"
        heads = "[None, :, None]" if tokens_first else "[None, None]"
        if tokens_first:
            w.line(f"{name} = {name}.transpose(1, 2)")
            here = f"{angles}[:{name}.shape[1]]"
        if way.startswith("columns"):
            table, pairs, out = w.name("v"), w.name("v"), w.name("v")
            w.line(f"{table} = torch.stack([{here}.cos(), -{here}.sin(), {here}.sin(), {here}.cos()], dim=-1).unflatten(-1, (2, 2)){heads}")
            w.line(f"{pairs} = {name}.{w.choice('float()', 'to(' + table + '.dtype)') if w.chance(0.5) else 'contiguous()'}.reshape(*{name}.shape[:-1], -1, 1, 2)")
            if way == "columns":
                w.line(f"{out} = {table}[..., 0] * {pairs}[..., 0] + {table}[..., 1] * {pairs}[..., 1]")
            else:
                w.line(f"{out} = {table}[..., 0] * {pairs}[..., 0]")
                w.line(f"{out}.addcmul_({table}[..., 1], {pairs}[..., 1])")
            w.line(f"{name} = {out}.reshape(*{name}.shape).type_as({name})")
        elif way.startswith("cosines"):
            cos, sin, first, second, turned = (w.name("v") for _ in range(5))
            spread = "repeat_interleave(2, -1)" if way == "cosines" else "repeat(1, 2)"
            w.line(f"{cos}, {sin} = {here}.cos().{spread}{heads}, {here}.sin().{spread}{heads}")
            if way == "cosines":
                w.line(f"{first}, {second} = {name}.reshape(*{name}.shape[:-1], -1, 2).unbind(-1)")
                w.line(f"{turned} = torch.stack([-{second}, {first}], dim=-1).flatten(3)")
            else:
                w.line(f"{first}, {second} = {name}.chunk(2, dim=-1)")
                w.line(f"{turned} = torch.cat([-{second}, {first}], dim=-1)")
            w.line(f"{name} = ({name} * {cos} + {turned} * {sin}).to({name}.dtype)")
        else:
            cos, sin = f"{here}.cos(){heads}", f"{here}.sin(){heads}"
            a, b = (f"{name}[..., :{half}]", f"{name}[..., {half}:]") if way == "halves" else (f"{name}[..., ::2]", f"{name}[..., 1::2]")
            parts = f"[{a} * {cos} - {b} * {sin}, {b} * {cos} + {a} * {sin}]"
            w.line(f"{name} = torch.cat({parts}, dim=-1)" if way == "halves" else f"{name} = torch.stack({parts}, dim=-1).flatten(-2)")
        if tokens_first:
            w.line(f"{name} = {name}.transpose(1, 2)")


def masked(w: Writer, q: str, k: str) -> str:
    """A float mask to add to scores."""
    name = w.name("v")
    made = w.choice(f"torch.zeros({q}.shape[2], {k}.shape[2], device=x.device, dtype=x.dtype).masked_fill(torch.ones({q}.shape[2], {k}.shape[2], dtype=torch.bool).tril().logical_not(), -1e4)",
                    f"torch.where(torch.arange({k}.shape[2]) < 2, 0.0, -3.0).to(x.dtype)[None, None, None]",
                    f"{q}.mean(-1, keepdim=True).expand(-1, -1, -1, {k}.shape[2]).contiguous()",
                    f"torch.linspace(0, 1, {k}.shape[2]).to(x.dtype).expand(1, 1, {q}.shape[2], -1)",
                    f"({q}[..., :1] * 0 + torch.linspace(-1, 0, {k}.shape[2]).to(x.dtype)).mean(1, keepdim=True)")
    w.line(f"{name} = {made}")
    return name


@step(TOKENS, 4)
def feed_forward(w: Writer, x: Value) -> None:
    hidden = 2 * x.channels
    h = f"{w.layer(f'nn.LayerNorm({x.channels})')}({x.name})" if w.chance(0.5) else x.name
    if w.chance(0.5):
        a, b = w.name("v"), w.name("v")
        if w.chance(0.7):
            w.line(f"{a}, {b} = {w.linear(x.channels, 2 * hidden)}({h}).{w.choice('chunk(2, -1)', 'chunk(2, dim=-1)', f'split({hidden}, dim=-1)')}")
        else:
            w.line(f"{a}, {b} = {w.linear(x.channels, hidden)}({h}), {w.linear(x.channels, hidden)}({h})")
        inner = w.choice(f"{a} * F.gelu({b})", f"F.silu({a}) * {b}", f"{a} * F.gelu({b}, approximate='tanh')", f"F.gelu({a}) * {b}", f"{a} * torch.sigmoid({b})")
    else:
        inner = w.choice("F.gelu($)", "F.gelu($, approximate='tanh')", "F.silu($)", "torch.relu($)").replace("$", f"{w.linear(x.channels, hidden)}({h})")
    y = w.let(f"{w.linear(hidden, x.channels)}({inner})", x, keep=False)
    w.let(w.choice(f"{x.name} + {y.name}", f"{y.name} + {x.name}", f"{x.name} + {w.vector(x.channels)}[:, None] * {y.name}",
                   f"torch.addcmul({x.name}, {w.vector(x.channels)}[:, None], {y.name})", y.name), x)


@step(TOKENS, 3)
def modulated_block(w: Writer, x: Value) -> None:
    """As a diffusion transformer's: shift, scale and gate of a vector, of which six come from one product."""
    c = x.channels
    emb = w.pick(VECTOR)
    if emb is None:
        return
    parts = [w.name("v") for _ in range(6)]
    y = f"{w.linear(emb.channels, 6 * c)}(F.silu({emb.name}))"
    w.line(f"{', '.join(parts)} = " + w.choice(f"{y}.chunk(6, dim=1)", f"{y}[:, None].chunk(6, dim=-1)", f"{y}.view(-1, 6, {c}).unbind(1)", f"({y}.reshape(-1, 6, {c}) + {w.parameter(6, c, plain=False)}).chunk(6, 1)"))
    at = "" if "[:, None]" in w.forward[-1] or "reshape" in w.forward[-1] else ".unsqueeze(1)"
    norm = w.layer(f"nn.LayerNorm({c}, eps=1e-6, elementwise_affine=False)")
    h = w.let(f"{norm}({x.name}) * (1 + {parts[1]}{at}) + {parts[0]}{at}", x, keep=False)
    y2 = w.let(f"{x.name} + {parts[2]}{at} * {w.linear(c, c)}({h.name})", x, keep=False)
    h = w.let(f"torch.addcmul({parts[3]}{at}, {norm}({y2.name}), 1 + {parts[4]}{at})", x, keep=False)
    w.let(f"{y2.name} + {parts[5]}{at} * {w.linear(2 * c, c)}(F.gelu({w.linear(c, 2 * c)}({h.name}), approximate='tanh'))", x)


@step(TOKENS, 2)
def single_block(w: Writer, x: Value) -> None:
    """As Flux's: queries, keys, values and the feed-forward's hidden layer by one product, and both back by another."""
    heads, width, hidden = w.random.choice((1, 2)), 8, w.random.choice((16, 24))
    depth = width // heads
    emb = w.vector(x.channels)
    h = f"{w.layer(f'nn.LayerNorm({x.channels}, eps=1e-6, elementwise_affine=False)')}({x.name})" if w.chance(0.6) else x.name
    qkv, mlp, q, k, v, out = (w.name("v") for _ in range(6))
    w.line(f"{qkv}, {mlp} = {w.choice('torch.split($, [#, ^], dim=-1)', '$.split([#, ^], dim=2)', '$.split_with_sizes([#, ^], -1)')}"
           .replace("$", f"{w.linear(x.channels, 3 * width + hidden)}({h})").replace("#", str(3 * width)).replace("^", str(hidden)))
    w.line(f"{q}, {k}, {v} = {qkv}.view({x.name}.shape[0], {x.name}.shape[1], 3, {heads}, {depth}).permute(2, 0, 3, 1, 4)")
    if w.chance(0.6):
        for name in (q, k):
            w.line(f"{name} = {w.layer(f'nn.RMSNorm({depth}, eps=1e-6)')}({name})")
    if w.chance(0.6):
        rotate(w, q, k, depth)
    w.line(f"{out} = F.scaled_dot_product_attention({q}, {k}, {v}).transpose(1, 2).reshape({x.name}.shape[0], -1, {width})")
    joined = f"torch.cat(({out}, {w.choice('F.gelu($, approximate=' + repr('tanh') + ')', 'F.gelu($)', 'F.silu($)', '$').replace('$', mlp)}), {w.choice('2', '-1', 'dim=-1')})"
    y = w.let(f"{w.linear(width + hidden, x.channels)}({joined})", x, keep=False)
    w.let(w.choice(f"{x.name} + {emb}[:, None] * {y.name}", f"{x.name} + {y.name}", f"torch.addcmul({x.name}, {emb}.unsqueeze(1), {y.name})"), x)


@step(TOKENS, 2)
def double_block(w: Writer, x: Value) -> None:
    """As SD3's and Flux's: two streams with weights of their own, and one attention over both."""
    other = w.pick(TOKENS, lambda value: value is not x)
    if other is None:
        return
    heads, width = w.random.choice((1, 2)), 8
    depth = width // heads
    normed, layout = w.chance(0.6), w.choice("heads", "tokens", "flat")
    streams = []
    for value in (other, x):
        names = [w.name("v") for _ in "qkv"]
        if w.chance(0.4):
            w.line(f"{', '.join(names)} = {w.linear(value.channels, 3 * width)}({value.name}).chunk(3, dim=-1)")
        else:
            for name in names:
                w.line(f"{name} = {w.linear(value.channels, width)}({value.name})")
        for index, name in enumerate(names):
            if layout != "flat":
                w.line(f"{name} = {name}.view({value.name}.shape[0], -1, {heads}, {depth}){'.transpose(1, 2)' if layout == 'heads' else ''}")
            if normed and index < 2:
                size = width if layout == "flat" else depth
                w.line(f"{name} = {w.layer(f'nn.RMSNorm({size}, eps=1e-6)')}({name})")
        streams.append(names)
    dim = "2" if layout == "heads" else "1"
    q, k, v = (w.name("v") for _ in "qkv")
    for name, parts in zip((q, k, v), zip(*streams, strict=True), strict=True):
        w.line(f"{name} = torch.cat([{', '.join(parts)}], dim={dim})")
        if layout == "flat":
            w.line(f"{name} = {name}.unflatten(-1, ({heads}, {depth}))")
        if layout != "heads":
            w.line(f"{name} = {name}.transpose(1, 2)")
    if w.chance(0.6):
        rotate(w, q, k, depth)
    out = w.name("v")
    w.line(f"{out} = F.scaled_dot_product_attention({q}, {k}, {v}).transpose(1, 2).flatten(2)")
    at = f"{other.name}.shape[1]"
    for value, part in ((other, f"[:, :{at}]"), (x, f"[:, {at}:]")):
        w.let(f"{value.name} + {w.linear(width, value.channels)}({out}{part})", value)


@step(TOKENS, 1)
def multihead_attention(w: Writer, x: Value) -> None:
    heads, first = w.random.choice((1, 2)), w.chance(0.7)
    layer = w.layer(f"nn.MultiheadAttention({x.channels}, {heads}, batch_first={first}, bias={w.chance(0.7)})")
    h = x.name if first else f"{x.name}.transpose(0, 1)"
    mask = f", attn_mask=torch.full(({x.name}.shape[1], {x.name}.shape[1]), -3.0, dtype=x.dtype).triu(1)" if w.chance(0.4) else ""
    y = w.name("v")
    w.line(f"{y} = {h}")
    w.let(f"{x.name} + {layer}({y}, {y}, {y}, need_weights=False{mask})[0]{'' if first else '.transpose(0, 1)'}", x)


@step(TOKENS, 2)
def concatenate_tokens(w: Writer, x: Value) -> None:
    other = w.pick(TOKENS, lambda value: value.channels == x.channels)
    if other is None:
        return
    y = w.let(f"torch.cat([{other.name}, {x.name}], dim=1)", x, size=w.name("joined"))
    z = w.let(f"{y.name} + {w.linear(y.channels, y.channels)}({w.layer(f'nn.LayerNorm({y.channels})')}({y.name}))", y)
    w.let(w.choice(f"{z.name}[:, {other.name}.shape[1]:]", f"{z.name}.split([{other.name}.shape[1], {x.name}.shape[1]], dim=1)[1]", f"{z.name}.narrow(1, {other.name}.shape[1], {x.name}.shape[1])"),
          x, own=False)


@step(TOKENS, 1)
def pool_tokens(w: Writer, x: Value) -> None:
    w.let(w.choice(f"{x.name}.mean(1)", f"{x.name}[:, 0]", f"{x.name}.amax(1)", f"({x.name} * {x.name}.softmax(1)).sum(1)"), x, kind=VECTOR, size=0, own=False)


@step(TOKENS, 2)
def tokens_to_image(w: Writer, x: Value) -> None:
    like = w.pick(IMAGE, lambda value: f"image{value.size}" == x.size)
    if like is not None:
        w.let(w.choice(f"{x.name}.transpose(1, 2).reshape({like.name}.shape[0], {x.channels}, {like.name}.shape[2], {like.name}.shape[3])",
                       f"{x.name}.mT.unflatten(2, {like.name}.shape[2:])", f"{x.name}.reshape(-1, *{like.name}.shape[2:], {x.channels}).permute(0, 3, 1, 2)"),
              like, x.channels, own=False)


@step(TOKENS, 1)
def einsum(w: Writer, x: Value) -> None:
    given = w.channels()
    weight = w.parameter(given, x.channels, plain=False)
    w.let(w.choice(f"torch.einsum('blc,dc->bld', {x.name}, {weight})", f"{x.name} @ {weight}.t()", f"torch.matmul({x.name}, {weight}.T)", f"F.linear({x.name}, {weight})",
                   f"torch.tensordot({x.name}, {weight}, dims=([2], [1]))"), x, given)


@step(TOKENS, 1)
def move_tokens(w: Writer, x: Value) -> None:
    w.let(w.choice(f"{x.name}.flip(1)", f"torch.roll({x.name}, 1, 1)", f"{x.name}.roll(shifts=-1, dims=1)", f"{x.name}[:, torch.arange({x.name}.shape[1] - 1, -1, -1)]",
                   f"{x.name}.cumsum(1) / {x.name}.shape[1]"), x)


# -- on vectors ----------------------------------------------------------------------------------------------------------------


@step(VECTOR, 2)
def embed(w: Writer, x: Value) -> None:
    given = w.channels()
    w.let(f"{w.linear(2 * given, given)}(F.silu({w.linear(x.channels, 2 * given)}({x.name})))", x, given)


# -- on any --------------------------------------------------------------------------------------------------------------------


def any_kind(weight: int) -> Callable[[Step], Step]:
    def add(function: Step) -> Step:
        for kind in (IMAGE, TOKENS):
            step(kind, weight)(function)
        return function

    return add


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
