"""Classification of operators and kernels by name; pure, and free of torch."""

import re
from collections.abc import Iterable

from harness.profiling.kernel_names import parse_kernel_name
from harness.records.profile import OperatorKind

_NORMALIZATION = re.compile(
    r"(?:batch|layer|group|instance|rms|weight|qk)_?(?:layer_?)?norm|\bbn_[fb]w|(?:^|_)ln_(?:fwd|bwd)|welford"
    r"|(?:^|_)(?:rms|l2norm)_|rowwisemoments|gammabeta|fusedparams|internalgradients|cucompute(?:part)?grad"
    r"|normalization"
)
_POOLING = re.compile(
    r"(?:max|avg|average|adaptive)_?pool|(?:max|average)_?gradinput|pooling|(?:^|_)pool[123]d|roi_?(?:align|pool)"
)
_EMBEDDING = re.compile(
    r"embedding|index_?select|vectorized_gather|compute_grad_weight|krn_partial|partial_segments"
    # Hash grids of neural fields (tiny-cuda-nn).
    r"|sum_and_scatter|(?:^|::)kernel_grid(?:_backward\w*)?$"
)
_LOSS = re.compile(
    r"loss|cross_?entropy|xentropy|classnll|(?:^|_)(?:kl_?div|jsd)|(?:^|::)mse_|(?:^|_)bce_|smooth_l1"
    r"|(?:^|_|::)huber|(?:^|_)c?ce_(?:lse_)?(?:fwd|bwd|forward|backward)|criterion|rnnt"
)
_ATTENTION = re.compile(
    # Deformable attention has kernels named as those of deformable convolution.
    # FlashInfer has kernels of all kinds.
    r"attention|attn|ms_deform|flash(?!infer)|fmha|sdpa|scaled_dot_product"
    r"|(?:decode|prefill)with|mergestate|flex_decod|natten|(?:^|_)mla_"
    # The stages of decoding in vLLM and SGLang.
    r"|^_?fwd_(?:grouped_)?kernel_stage"
    # AOTriton's and aiter's backward pass.
    r"|sage_(?:fwd|quant)|bwd_kernel_d[kq]|^_?bwd_(?:preprocess|kernel_fuse)"
)
_CONVOLUTION = re.compile(
    # MIOpen has "MIOpenConvUni" and "MIOpenCvBwdWrW".
    r"conv(?!ert)|miopencv|cudnn|wgrad|dgrad|fprop|bprop|winograd|implicit_gemm|igemm_|fft2d|flip_filter"
    # Composable Kernel's backward passes, as batched products.
    r"|(?:xdl(?:ops)?|wmma)_bwd_(?:weight|data)"
    r"|(?:im|vol)(?:\dd)?2col|(?:col|vol)2(?:im|vol)|compute\w*offsets|depthwise"
)
_MATMUL = re.compile(
    r"gemm|gemv|cublas|cutlass|nvjet|splitk|(?:^|_)cijk_|marlin|moe_kernel|matmul|mmbackward|mvbackward"
    # LoRA's small products.
    r"|[bs]gmv|lora_(?:shrink|expand)"
    r"|cusparse::\w*(?:mm|mv)|(?:^|_|::)(?:spmm|sddmm)|mlp_fused"
    r"|(?:^|_|::)(?:bmm|(?:addb?|badd)?b?mm(?![a-z0-9]))|(?:^|_|::)linear(?:backward|$|_)"
    r"|(?:^|::)dot_kernel|reduce_1block"
)
# The keys and values of inference, in the layout that the kernels of attention read.
_CACHE = (
    r"(?:append|store|set|write|reshape_and|concat_and)_?\w*(?:cache|kv_?buffer)|kv_?(?:buffer|cache)(?:_kernel)?$"
    r"|(?:copy|swap)_blocks"
)
_COPY = re.compile(
    r"memcpy|memset|copy_kernel|copy_device|copy(?:host|device)to|catarray|fillfunctor|(?<!masked_)fill_kernel"
    rf"|index_elementwise|copy_out|copy_async|{_CACHE}|rocclr_(?:copy|fill)|copyscalarfunc|castscalarfunc"
    # Of points, graphs, pages and the tokens of a mixture of experts.
    r"|(?:^|_|::)(?:gather|scatter|copy_|group_points)\S*kernel|(?:^|_|::)(?:un)?permute_kernel|sort_chunks_by"
    # Transformer Engine's, of weights and activations.
    r"|transformer_engine::\S*(?<!cast_)transpose|(?:^|_|::)(?:cat|roll)_cuda|subtensoropwith(?:sub|cast)tensor"
    # The accumulating half of index_put and index_add.
    r"|gather_elementwise|indexing_backward|indexfunc(?:small|large)index"
    r"|(?:reflection|replication|constant)_pad|converttensor|copytensor|(?:clone|copy|copies|copyslices|cat|stack)backward"
)

# The first pattern that matches the kernel's function name decides: cuDNN's batch norm is not a convolution,
# a convolution by implicit_gemm is not a matrix multiply, and the activation fused into a gemm is not
# separate work. Names are those of cuBLAS (gemm, nvjet), CUTLASS, cuDNN, NCCL, PyTorch
# (aten/src/ATen/native/cuda) and Triton kernels.
_IN_ORDER: tuple[tuple[OperatorKind, re.Pattern[str]], ...] = (
    (
        OperatorKind.COMMUNICATION,
        re.compile(
            r"nccl|rccl|msccl|c10d::|gloo:|all_?reduce|all_?gather|reduce_?scatter|cross_device_reduce"
            r"|nvshmem|deep_ep::|param_comms|all_?to_?all|userbuffers"
        ),
    ),
    (
        OperatorKind.OPTIMIZER,
        re.compile(
            r"optimizer|amp_(?:update_scale|non_finite)|(?:^|_)fused_?(?:adam|sgd|lamb|adagrad|lion)|_foreach_"
            r"|multi_?tensor|adam_|adamw|percentileclipping"
        ),
    ),
    # The elementwise part of a recurrent cell, and the rotation of queries and keys.
    (
        OperatorKind.ELEMENTWISE,
        re.compile(
            r"elemwisernncell|(?:lstm|gru|rnn)_elementwise|(?:lstm|gru)_cell|rotary|(?:^|_)m?rope(?:_|$)"
        ),
    ),
    (
        OperatorKind.RECURRENT,
        re.compile(
            r"(?:cudnn|mkldnn|miopen)_?rnn|rnn_(?:block)?persist|persist\w*rnn|(?:^|::)rnn_\w+$"
            r"|(?:^|_|::)(?:lstm|gru)(?:_mps)?(?:_backward)?$"
            # State-space models and linear attention: Mamba, Flash Linear Attention, RWKV.
            r"|selective_?(?:scan|state)|(?:^|_)chunk_(?:scan|state|cumsum|local_cumsum|gla|delta|gated|retention)"
            r"|(?:^|_)chunk_(?:fwd|bwd)_kernel|state_passing|delta_rule|fused_recurrent|wkv|(?:^|_)sru_"
            r"|recompute_w_u|wy_repr"
        ),
    ),
    (
        OperatorKind.LAYOUT,
        re.compile(
            r"(?:nc?d?hwc?|chw)\w{0,16}to\w{0,16}(?:nc?d?hw|hwc)|nhwcaddpadding|nhwc_padding|tensortransform"
            r"|^(?!\S*(?:cast_transpose|transformer_engine::))"
            r"\S*(?:^|::|generic|(?<!conv)(?<!convolution)_)transpose(?:_|kernel|$)"
        ),
    ),
    (OperatorKind.NORMALIZATION, _NORMALIZATION),
    (OperatorKind.COPY, re.compile(_CACHE)),
    (OperatorKind.ATTENTION, _ATTENTION),
    (OperatorKind.POOLING, _POOLING),
    (OperatorKind.EMBEDDING, _EMBEDDING),
    (OperatorKind.LOSS, _LOSS),
    (OperatorKind.COPY, re.compile(r"cudnn::ops::(?:convert|copy)")),
    (OperatorKind.ELEMENTWISE, re.compile(r"cudnn::ops::")),
    (OperatorKind.CONVOLUTION, _CONVOLUTION),
    (OperatorKind.MATMUL, _MATMUL),
    (OperatorKind.COPY, _COPY),
    (
        OperatorKind.ELEMENTWISE,
        re.compile(
            r"elementwise|pointwise|softmax|relu|gelu|silu|swish|mish|tanh|sigmoid|dropout|threshold|reduce_?kernel"
            r"|generic_tensor|tensor_kernel_scan|cub::\S*(?:device|agent)(?:segmented)?(?:reduce|scan)|lookback_scan"
            r"|(?:^|::)transform_kernel"
            r"|triu_tril|lpnorm"
            # Types of 8 and 4 bits: Transformer Engine, fbgemm, vLLM, TensorRT-LLM, bitsandbytes, ExLlama.
            r"|quant(?!ile)|_fp8_|fp8rowwise|cast_transpose|reconstruct_\w*(?:exllama|\dbit)"
            # nvFuser, and XLA.
            r"|nvfuser|(?:^|_)fusion(?:_\d+)?$"
            r"|masked_scale|(?:add|op)_tensor_kernel|activation_[fb]w|segment_?(?:csr|coo|reduce)"
            r"|(?:^|_|::)amax_|element_mul|dali::kernels::"
            # MIOpen's.
            r"|subtensorop|(?:^|::)op(?:\dd)?tensor|miopen(?:active|neuron)"
            r"|act_and_mul|swiglu|geglu|(?:^|_|::)(?:moe_sum|bias_act|gated_act)|upsample|grid_?sampler"
            r"|masked_fill|distribution|compiledfxgraph"
            r"|(?:add|sub|mul|div|sum|mean|pow|exp|log|sqrt|neg|where|abs|norm|var|std|clamp\w*)backward\d*$"
        ),
    ),
)
# The kinds that a launcher's template argument can have.
_LAUNCHED = (OperatorKind.ATTENTION, OperatorKind.CONVOLUTION, OperatorKind.MATMUL)
# The second is torch's on Intel's GPUs.
_ELEMENTWISE_LAUNCHER = re.compile(r"(?<!index_)(?<!gather_)elementwise_kernel|xpu::\w*elementwise\w*kernel")
# Thrust, CUB's loop and rocPRIM name what they do in their template arguments.
_ALGORITHM_LAUNCHER = re.compile(r"(?:::_kernel_agent|for_each::static_kernel|::trampoline_kernel)$")
_ALGORITHMS = (
    (OperatorKind.OTHER, re.compile(r"sort|unique|partition|select(?!or)")),
    (OperatorKind.COPY, re.compile(r"fill|copy|gather|scatter")),
    (OperatorKind.ELEMENTWISE, re.compile(r"transform|reduce|scan|tabulate")),
)

# Kernels of torch.compile: poi (pointwise), red and per (reductions), tem (a template).
_COMPILED = re.compile(r"^triton_(?:(?P<form>[a-z]{3})_)?fused_(?P<operators>.*)$")
# Operators in the name of a fused kernel whose products run in separate kernels.
_RUN_ELSEWHERE = re.compile(r"convolution(?:_backward)?|addmm|addbmm|baddbmm|(?:^|_)b?mm(?=_)")
_ONLY_COPIES = re.compile(
    r"(?:_|\d|to_copy|clone|copy|cat|stack|constant_pad_nd|permute|transpose|view|unsafe|expand|slice|select|fill|t(?=_))*"
)
_ANY_COPY = re.compile(r"copy|clone|cat|stack|pad|fill|slice")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# ATen operators by their whole name, without a trailing underscore (in place).
_OPERATORS: dict[OperatorKind, frozenset[str]] = {
    OperatorKind.MATMUL: _names(
        "mm bmm addmm addbmm baddbmm matmul addmv mv dot einsum linear _scaled_mm _grouped_mm _int_mm "
        "_addmm_activation outer ger addr inner kron tensordot bilinear _trilinear"
    ),
    OperatorKind.COPY: _names(
        "copy to _to_copy clone contiguous cat stack fill zero zeros_like ones_like full_like gather index "
        "index_put _index_put_impl repeat repeat_interleave roll flip constant_pad_nd scatter scatter_add "
        "scatter_reduce index_add index_copy index_fill masked_select masked_scatter slice_scatter "
        "select_scatter as_strided_scatter slice_backward select_backward _unsafe_index tile narrow_copy "
        "expand_copy new_zeros new_ones new_full pixel_shuffle pixel_unshuffle native_channel_shuffle"
    ),
    OperatorKind.ELEMENTWISE: _names(
        "add sub mul div sqrt rsqrt exp log pow neg lerp addcmul addcdiv clamp clamp_min clamp_max sum mean "
        "where abs maximum minimum eq ne lt le gt ge native_dropout norm linalg_vector_norm masked_fill var "
        "std bernoulli normal uniform random exponential geometric cauchy log_normal max min amax amin "
        "aminmax argmax argmin prod logsumexp cumsum cumprod logcumsumexp var_mean std_mean any all rsub "
        "square reciprocal sign log1p log2 exp2 expm1 sin cos erf floor ceil round remainder elu "
        "elu_backward celu selu softplus softplus_backward glu glu_backward logical_and logical_or "
        "logical_not bitwise_and bitwise_or bitwise_not isnan isinf isfinite nan_to_num tril triu"
    ),
    # Views: no data moves.
    OperatorKind.OTHER: _names("transpose permute t numpy_t swapaxes movedim"),
}


def classify(name: str) -> OperatorKind:
    """Return the kind of an operator ("aten::addmm") or kernel ("sm90_xmma_gemm_…"); OTHER if unknown."""
    low = name.lower()
    namespace, _, operator = low.rpartition("::")
    if namespace == "aten":
        for kind, names in _OPERATORS.items():
            if operator in names or operator.removesuffix("_") in names:
                return kind
        return _first(operator, _IN_ORDER)
    if low.startswith(("memcpy", "memset")):
        return OperatorKind.COPY
    compiled = _COMPILED.match(low)
    if compiled is not None:
        return _compiled(compiled["form"] or "poi", compiled["operators"])
    return _kernel(low)


def _kernel(low: str) -> OperatorKind:
    parsed = parse_kernel_name(low)
    function, template = parsed.function, parsed.template
    if _ELEMENTWISE_LAUNCHER.search(function):
        kind = _first(
            template,
            (
                (OperatorKind.NORMALIZATION, _NORMALIZATION),
                (OperatorKind.COPY, _COPY),
                (OperatorKind.LOSS, _LOSS),
            ),
        )
        return OperatorKind.ELEMENTWISE if kind is OperatorKind.OTHER else kind
    if _ALGORITHM_LAUNCHER.search(function):
        return _first(template, _ALGORITHMS)
    if parsed.is_launcher:
        patterns = [entry for entry in _IN_ORDER if entry[0] in _LAUNCHED]
        return _first(f"{function} {template}", patterns)
    kind = _first(function, _IN_ORDER)
    # cuBLAS has kernels that only its types identify, as that of an epilogue.
    return OperatorKind.MATMUL if kind is OperatorKind.OTHER and "cublas" in low else kind


def _compiled(form: str, operators: str) -> OperatorKind:
    if form == "tem":
        kind = _first(
            operators, ((OperatorKind.ATTENTION, _ATTENTION), (OperatorKind.CONVOLUTION, _CONVOLUTION))
        )
        return OperatorKind.MATMUL if kind is OperatorKind.OTHER else kind
    operators = _RUN_ELSEWHERE.sub("", operators)
    kind = _first(
        operators,
        (
            (OperatorKind.NORMALIZATION, _NORMALIZATION),
            (OperatorKind.LOSS, _LOSS),
            (OperatorKind.POOLING, _POOLING),
            (OperatorKind.EMBEDDING, _EMBEDDING),
        ),
    )
    if kind is OperatorKind.OTHER and _ANY_COPY.search(operators) and _ONLY_COPIES.fullmatch(operators):
        return OperatorKind.COPY
    return OperatorKind.ELEMENTWISE if kind is OperatorKind.OTHER else kind


def _first(text: str, patterns: Iterable[tuple[OperatorKind, re.Pattern[str]]]) -> OperatorKind:
    return next((kind for kind, pattern in patterns if pattern.search(text)), OperatorKind.OTHER)
