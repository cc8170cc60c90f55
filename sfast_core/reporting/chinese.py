"""The report, the reasons and the advice in Chinese. Fields in braces are those of the English sentences."""

from __future__ import annotations

#: By a reason's code.
SENTENCES: dict[str, str] = {
    "no-gpu": "输入在 {device} 上，它不是 CUDA 设备",
    "no-tensor": "参数中没有张量",
    "empty": "有一个输入是空的",
    "gradients": "正在记录梯度：请在 torch.no_grad() 或 torch.inference_mode() 下调用",
    "own-graph": "调用者正在捕获它自己的 CUDA 图",
    "jit-trace": "torch.jit.trace 正在追踪它",
    "transform": "它在 torch.func 的变换中被调用",
    "forward-mode": "正在计算前向模式梯度",
    "compiled-around": "torch.compile 编译了它外围的代码",
    "compiled-too": "torch.compile 也用在了它上面：两者请只用一个",
    "watched": "{mode} 监视 torch 的每个函数，而重放时不会调用任何函数",
    "profiler": "有一个 C 层的性能分析器在工作",
    "tools": "Python 的监视工具已全部被别人占用",
    "holds-itself": "{place} 包含它自己",
    "too-deep": "{place} 嵌套超过 {most} 层容器",
    "too-many": "{place} 使参数超过 {most} 个值",
    "tensor-key": "{place} 以张量作为键",
    "not-keyed": "{place} 含有 {kind}，它不能成为签名的一部分",
    "not-strided": "{place} 是布局为 {layout} 的 {kind}，需要普通的 strided 张量",
    "writes-arguments": "这次调用改变了它的参数",
    "grows": "{kind} 的 {names} 随每次调用增长",
    "keep-changing": "它的形状一直在变：同样的形状再次出现时才会被追踪",
    "take-turns": "几乎每次调用都要追踪：超过 {most} 个签名轮流出现",
    "setting-changes": "几乎每次调用都要追踪：PyTorch 的设置 {setting} 不一样了",
    "changes": "几乎每次调用都要追踪：{change}",
    "live-now": "{why}：{what} 从现在起原样运行",
    "may-read": "模型可能从选项中读取 {names}",
    "reads-option": "模型从选项中读取 {name}，而它在每一步都不同",
    "reads-function": "模型读取别人函数中的 {name}：{function}",
    "reads-left": "模型读取 {name} 放入其选项中的内容：{key}",
    "finished": "{what}：由原来的 forward 完成",
    "not-made-again": "{name} 得到一个 {kind}，它在下一次调用时无法重新构造",
    "changes-module": "调用本身改变了模块：{what}",
    "says": "调用用 {name} 输出内容，而这不会被重复输出",
    "changes-setting": "调用本身改变了 PyTorch 的设置 {setting}",
    "random": "它会抽取随机数",
    "random-state": "{name} 查询或设置随机数的状态",
    "random-meanwhile": "期间抽取了随机数",
    "not-compared": "{origin} 是 {kind}，其状态无法比较",
    "outside": "{origin} {asks}",
    "unlike": "{name} 读取输入或权重中每次调用都不同的东西",
    "overlapping": "{name} 写入两个共用内存的张量之一",
    "too-much": "{origin} 内容太多，无法在每次调用时比较",
    "hooks-of-all": "所有模块都有 forward 钩子",
    "hooks": "{whose} forward 钩子",
    "keeps-state": "{name} 有 diffusers 的钩子，它在各步之间保留状态",
    "reads-value": "{name} 把张量的值读入 Python",
    "size-by-value": "{name} 返回的张量的形状取决于另一个张量的值",
    "by-its-place": "{name} 取决于张量在内存中的存放方式",
    "from-elsewhere": "{name} 读取一个 {what}，它不是输入，不是权重，也不是在这次调用中算出的",
    "block-as-it-was": "{why}，并且其中一个块按原样运行：{block}",
    "failed-recording": "记录时出错：{error}",
    "not-read": "无法读取控制它的内容：{error}",
    "not-traced": "无法追踪它：{why}",
    "not-fused": "无法融合它：{error}：{why}",
    "over-budget": "{why}，而质量 {quality} 要求更接近",
    "further": "融合的结果与原来的相对 L2 距离为 {distance}，最多允许 {allowed}",
    "ours": "Fast Compile 出错：{error}",
    "failed": "融合后的 forward 失败：{error}",
    "no-cuda": "没有 CUDA 设备",
    "graphs-off": "已在设置中关闭",
    "too-large": "对这么大的图像，图不会节省时间，却会占用扩散模型的显存",
    "short-lived": "它的图还没有各服务 {calls} 次调用就失去了，因为权重换了，或别处需要显存",
    "from-python": "{name} 在每次调用时从 CPU 复制数值",
    "on-another": "{name} 在 {where} 上",
    "not-captured": "捕获失败：{error}",
    "out-of-memory": "显存不足",
    "not-there": "权重 {weight} 在 {where} 上，而不在 {device} 上",
    "brought": "{name} 读取一个在 {where} 上而不在 {device} 上的张量",
    "partly-away": "{why}，并且它的一部分不在 {device} 上",
    "beside": "就在此刻，这个模型也在不经过 Fast Compile 的情况下运行",
    "computed": "它的层在每次调用时计算权重（{kind} 这样做）",
    "which-dtype": "权重 {weight} 每次使用时才计算，无法得知其数据类型",
    "computes": "{kind} 在每次调用时计算它的权重",
    "not-understood": "无法理解 {kind} 的权重 {name}",
    "in-a-file": "动态显存把 {kind} 保存在文件中",
    "not-paged": "权重 {weight} 不在动态显存的范围内",
    "unknown-vram": "无法理解这个版本的动态显存",
    "float32": "它以 float32 计算且关闭了 TF32，融合内核在 TF32、float16 或 bfloat16 下才值得",
    "not-a-picture": "它的输入有 {shown}：能加速的是图像、视频和声音的 VAE",
    "no-clip": "它不是 {known}：{why}",
    "no-halves": "它没有能理解的编码器或解码器",
    "other-model": "无法理解 {what}",
    "control-lora": "Control-LoRA 每次采样都会重新构造模型，追踪它所花的时间比节省的还多",
    "node-replaces": "另一个节点替换了它的 {attribute}（{by}）",
    "node-wraps": "另一个节点包装了它的 forward：{names}",
    "run-by": "它的块由 {who} 运行，而不是由它的 forward 运行",
    "goes-around": "对于这类调用，模型自己用自己的代码运行它的块，而不是由它的 forward 运行",
    "past-node": "这次调用绕过了节点，直接到了扩散模型本身",
    "no-module": "它的扩散模型是 {kind}，不是 PyTorch 模块",
    "not-hooked": "无法替换它的 forward",
    "extension-replaces": "另一个扩展替换了它的 {attribute}（{by}）",
    "went-past": "有一次采样绕过了它：{who}",
    "lora-functional": "设置“Lora: use old method”在每一层中计算 LoRA",
    "online-lora": "LoRA 在每次调用时合并到权重中（“online” LoRA）",
    "lowvram": "--lowvram 把它的各部分逐个移到 GPU",
    "sd-unet": "设置“SD Unet”中选择了另一个 UNet",
}
_REPORT = "请连同报告文本一起反馈"
_NOTHING = "无需处理：结果是正确的，这次调用和原来一样快"
#: By the English clauses.
ADVICE: dict[str, str] = {
    "please report it, with the text of the report": _REPORT,
    "nothing is faster without an NVIDIA GPU that PyTorch sees: run `python -m sfast_core doctor`": (
        "没有 PyTorch 能识别的 NVIDIA GPU 就不会更快：请运行 `python -m sfast_core doctor`"
    ),
    "nothing: the result is right, and this call is as fast as before": _NOTHING,
    "nothing: training, and steering by gradients, need the model's own forward": (
        "无需处理：训练模型或用梯度引导它时，需要它原来的 forward"
    ),
    "use one of the two": "两者只用一个",
    "turn it off where you don't need it": "不需要时请关闭它",
    "turn one of them off": "请关闭其中一个",
    "if a node passes that to the model, remove the node where you don't need it; if the"
    " model itself does, nothing: this call is as fast as before": (
        "如果是某个节点把它交给模型的，不需要时请去掉那个节点；如果是模型自己，无需处理：这次调用和原来一样快"
    ),
    "if a node brings that in, remove the node where you don't need it; otherwise please report it, with the text of"
    " the report": f"如果是某个节点带来的，不需要时请去掉它；否则{_REPORT}",
    "turn cuda_graphs on if there is enough memory": "显存足够时请打开 cuda_graphs",
    "nothing: a graph is captured again once it is likely to stay": "无需处理：图可能保留下来时会再次捕获",
    "nothing: it is as fast without one": "无需处理：没有它也一样快",
    "if a node brings that in, remove the node where you don't need it; if the model"
    " itself does, nothing: this call is as fast as before": (
        "如果是某个节点带来的，不需要时请去掉它；如果是模型自己带来的，无需处理：这次调用和原来一样快"
    ),
    "nothing: a size that comes again is traced": "无需处理：再次出现的尺寸会被追踪",
    "raise max_signatures in the settings": "请在设置中调大 max_signatures",
    "if a node switches it, use one setting in the whole workflow, or remove the node;"
    " otherwise nothing: this call is as fast as before": (
        "如果是某个节点在切换它，请在整个工作流中设成一样，或去掉它；否则无需处理：这次调用和原来一样快"
    ),
    "nothing: it is traced again": "无需处理：会重新追踪",
    "remove that node where you don't need it; calls without it stay fast": (
        "不需要时请去掉那个节点；没有它的调用仍然是快的"
    ),
    "remove that node where you don't need it; calls without it stay fast, if necessary after the model has been"
    " reloaded": "不需要时请去掉那个节点；没有它的调用仍然是快的，必要时请重新加载模型",
    "nothing: each way is traced once": "无需处理：每种走法追踪一次",
    "call disable_cache() where you don't need it": "不需要时请调用 disable_cache()",
    "run `python -m sfast_core doctor`; please report it, with the text of the report": (
        f"请运行 `python -m sfast_core doctor`；{_REPORT}"
    ),
    "free GPU memory so that the whole model fits: use a smaller model, or fewer at once": (
        "请腾出显存，使整个模型放得下：用更小的模型，或减少同时使用的模型"
    ),
    "save the model with its LoRAs merged if its weights are quantised; otherwise remove the node that wraps them": (
        "如果权重是量化的，请把 LoRA 合并后保存模型；否则去掉包装权重的节点"
    ),
    "take the file in another format (float16, bfloat16, fp8), or please report it, with the text of the report": (
        f"请换用其他格式的文件（float16、bfloat16、fp8），或{_REPORT}"
    ),
    "nothing: it is tried again": "无需处理：会再次尝试",
    "start ComfyUI with --disable-dynamic-vram, and please report it, with the text of the report": (
        f"请用 --disable-dynamic-vram 启动 ComfyUI，并{_REPORT}"
    ),
    "start ComfyUI with --bf16-vae, if the VAE's pictures come out right that way": (
        "如果 VAE 的图像允许，请用 --bf16-vae 启动 ComfyUI"
    ),
}
#: The lines of the report, by the English ones.
LINES: dict[str, str] = {
    "{name} on {device}: {verdict}": "{name}，在 {device} 上：{verdict}",
    "{name}: {verdict}": "{name}：{verdict}",
    "{name} is left out: {why}": "{name} 未处理：{why}",
    "  calls: {calls}": "  调用：{calls}",
    "  {times} x as fast as without it, as the benchmark measured, for {size}": (
        "  基准测试测得是不使用时的 {times} 倍速度，尺寸 {size}"
    ),
    "  ran as before, {count}x: {reason}": "  按原样运行 {count} 次：{reason}",
    "    what you can do: {advice}": "    可以这样做：{advice}",
    "  {count} more calls didn't run it: {who} answered in its place": (
        "  另有 {count} 次调用没有运行它：由 {who} 代为应答"
    ),
    "  memory: graphs {graphs}, weights laid out anew {adopted}{copied}": (
        "  显存：图 {graphs}，重新排列的权重 {adopted}{copied}"
    ),
    ", weights in 8 bits beside them {size}": "，另有 8 位权重 {size}",
    "  several GPUs: {what}": "  多 GPU：{what}",
    "  quality: {quality}, as it is set; what was done is said for each size": (
        "  质量：按设置为 {quality}；每个尺寸分别说明了所做的处理"
    ),
    "  {size}: {calls}, {became}": "  {size}：{calls}，{became}",
    "    quality: {what}": "    质量：{what}",
    "; {distance} from the model's own result in the first call": "；第一次调用中与模型自身结果相距 {distance}",
    "; {count} calls of {calls} used the deep part of an earlier one": (
        "；{calls} 次调用中有 {count} 次使用了先前一次的深层部分"
    ),
    "    streams {size} of weights to the device at each call{through}{kept}": (
        "    每次调用向设备传送 {size} 权重{through}{kept}"
    ),
    " through {size} of its memory": "，使用其中 {size} 显存",
    ", one by one": "，逐个传送",
    "; {size} stay there for a sampling": "；其中 {size} 在一次采样期间留在那里",
    "    recorded with the model's code: {functions}": "    与模型的代码一起记录：{functions}",
    "    {count} segment, between them: {functions}{share}": "    {count} 段，其间原样运行：{functions}{share}",
    "    {count} segments, between them: {functions}{share}": "    {count} 段，其间原样运行：{functions}{share}",
    ", {part} of the time": "，占用时间的 {part}",
    "    that runs live because {why}": "    原样运行的原因：{why}",
    "{shown} and {more} more": "{shown}，以及另外 {more} 个",
    "{count} calls answered by {who}": "{count} 次调用由 {who} 应答",
    "ran as before: {why}": "按原样运行：{why}",
    "ready in {seconds} s": "准备用时 {seconds} 秒",
    ", graph {size}": "，图 {size}",
    ", no graph: {why}": "，没有图：{why}",
    "nothing has run through it yet": "还没有任何内容经过它运行",
    "not fast": "没有加速",
    "fast": "已加速",
    "traced and fused, which makes nothing faster on a CPU": "已记录并融合，但在 CPU 上不会更快",
    "fast, but for some calls": "已加速，个别调用除外",
    "fast, without graphs": "已加速，没有图",
    "fast, but for some calls, without graphs": "已加速，个别调用除外，没有图",
    "traced: fast from the next call on": "已记录：从下一次调用起加速",
    "{count} replayed": "{count} 次重放",
    "{count} fused": "{count} 次融合",
    "{count} traced": "{count} 次记录",
    "{count} eager": "{count} 次按原样",
    "{count} calls": "{count} 次调用",
    "{count} call": "{count} 次调用",
    "none": "无",
    "{count} latent frames": "{count} 个潜空间帧",
    "{count} at once": "同时 {count} 个",
    "{count} tokens": "{count} 个 token",
}
