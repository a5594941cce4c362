"""The operators of a step of the simulated transformer: module, kernel and share of the time.

The shares are rules of thumb for such a model in TF32 on such a GPU; AMP speeds up each kind of work by a
factor, and adds casts.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from harness.records.profile import OperatorKind
from harness.records.run import Phase

LAYERS = 12
_GEMM = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_execute_kernel"
_GEMM_BF16 = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT"
_NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>"
_NORM_BACK = "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<float, float>"
_ATTEND = "fmha_cutlassF_f32_aligned_64x64_rf_sm80"
_ATTEND_BACK = "fmha_cutlassB_f32_aligned_64x64_k64_sm80"
_ATTEND_BF16 = "pytorch_flash::flash_fwd_kernel"
_ATTEND_BACK_BF16 = "pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel"
_POINTWISE = "void at::native::vectorized_elementwise_kernel<4, {}>"
_ADD, _GELU = _POINTWISE.format("CUDAFunctor_add<float>"), _POINTWISE.format("GeluCUDAKernelImpl")
_GELU_BACK = _POINTWISE.format("GeluBackwardCUDAKernelImpl")
_CAST = "void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>"
_REDUCE = "void at::native::reduce_kernel<128, 4, ReduceOp<float, func_wrapper_t<float, sum_functor>>>"
_SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>"
_SOFTMAX_BACK = "void at::native::(anonymous namespace)::cunn_SoftMaxBackward<4, float>"
_GATHER = "void at::native::vectorized_gather_kernel<16, long>"
_SCATTER = "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float, float, long>"
_ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>"
_MEMCPY = "Memcpy HtoD (Pageable -> Device)"

# Time under AMP relative to the time without.
AMP_TIME: Mapping[OperatorKind, float] = {
    OperatorKind.MATMUL: 0.44,
    OperatorKind.ATTENTION: 0.5,
    OperatorKind.NORMALIZATION: 0.72,
    OperatorKind.ELEMENTWISE: 0.68,
}
_AMP_KERNELS = {_GEMM: _GEMM_BF16, _ATTEND: _ATTEND_BF16, _ATTEND_BACK: _ATTEND_BACK_BF16}
_AMP_OPERATORS = {
    "aten::_scaled_dot_product_efficient_attention": "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention_backward": (
        "aten::_scaled_dot_product_flash_attention_backward"
    ),
}


class Work(NamedTuple):
    """One operator in one module and phase. `caller` is the operator that called it; `weight` its relative
    share of the phase's device time; `calls` are those of one step, with one kernel each.
    """

    module: str
    class_name: str
    phase: Phase
    caller: str
    operator: str
    kernel: str
    kind: OperatorKind
    weight: float
    calls: int
    line: str


def work(is_amp: bool) -> list[Work]:
    """Return all operators of a step."""
    operators = [*_forward(), *_backward(), *_rest()]
    if not is_amp:
        return operators
    fast = [
        one._replace(
            kernel=_AMP_KERNELS.get(one.kernel, one.kernel),
            operator=_AMP_OPERATORS.get(one.operator, one.operator),
            weight=one.weight * AMP_TIME.get(one.kind, 1.0),
        )
        for one in operators
    ]
    cast = [
        one._replace(
            caller="aten::to",
            operator="aten::copy_",
            kernel=_CAST,
            kind=OperatorKind.COPY,
            weight=0.09,
            calls=2,
        )
        for one in operators
        if one.kernel == _GEMM and one.phase is Phase.FORWARD
    ]
    return fast + cast


class _Layer(NamedTuple):
    """One operator of a module's forward pass, and its operators in the backward pass."""

    module: str
    class_name: str
    caller: str
    operator: str
    kernel: str
    kind: OperatorKind
    weight: float
    line: str
    # Autograd node, operator, kernel, kind, weight.
    back: tuple[tuple[str, str, str, OperatorKind, float], ...]


def _linear(module: str, weight: float, line: str) -> _Layer:
    back = (
        ("AddmmBackward0", "aten::mm", _GEMM, OperatorKind.MATMUL, 2 * weight),
        ("AddmmBackward0", "aten::sum", _REDUCE, OperatorKind.ELEMENTWISE, 0.06 * weight),
    )
    return _Layer(
        module, "Linear", "aten::linear", "aten::addmm", _GEMM, OperatorKind.MATMUL, weight, line, back
    )


def _norm(module: str, line: str) -> _Layer:
    caller, operator = "aten::layer_norm", "aten::native_layer_norm"
    node = ("NativeLayerNormBackward0", f"{operator}_backward", _NORM_BACK, OperatorKind.NORMALIZATION, 0.9)
    return _Layer(
        module, "LayerNorm", caller, operator, _NORM, OperatorKind.NORMALIZATION, 0.4, line, (node,)
    )


_ATTENTION = "aten::_scaled_dot_product_efficient_attention"
_SDPA_NODE = "ScaledDotProductEfficientAttentionBackward0"
_BLOCK = (
    _norm("attention_norm", "attention.py:75 forward"),
    _linear("attention.query", 1.0, "attention.py:31 forward"),
    _linear("attention.key_value", 2.0, "attention.py:32 forward"),
    _Layer(
        "attention",
        "Attention",
        "aten::scaled_dot_product_attention",
        _ATTENTION,
        _ATTEND,
        OperatorKind.ATTENTION,
        3.1,
        "attention.py:33 forward",
        ((_SDPA_NODE, f"{_ATTENTION}_backward", _ATTEND_BACK, OperatorKind.ATTENTION, 7.4),),
    ),
    _linear("attention.residual", 1.0, "attention.py:36 forward"),
    _norm("forward_norm", "attention.py:79 forward"),
    _linear("feed_forward.widen", 4.0, "attention.py:54 forward"),
    _Layer(
        "feed_forward",
        "FeedForward",
        "",
        "aten::gelu",
        _GELU,
        OperatorKind.ELEMENTWISE,
        1.3,
        "attention.py:54 forward",
        (("GeluBackward0", "aten::gelu_backward", _GELU_BACK, OperatorKind.ELEMENTWISE, 1.9),),
    ),
    _linear("feed_forward.residual", 4.0, "attention.py:54 forward"),
    _Layer(
        "",
        "TransformerBlock",
        "",
        "aten::add",
        _ADD,
        OperatorKind.ELEMENTWISE,
        1.1,
        "attention.py:79 forward",
        (),
    ),
)
_HEAD = (
    _norm("norm", "transformer.py:29 forward"),
    _linear("head", 1.4, "transformer.py:29 forward"),
    _Layer(
        "",
        "Transformer",
        "aten::cross_entropy_loss",
        "aten::_log_softmax",
        _SOFTMAX,
        OperatorKind.ELEMENTWISE,
        0.9,
        "base.py:33 mean_cross_entropy",
        (
            (
                "LogSoftmaxBackward0",
                "aten::_log_softmax_backward_data",
                _SOFTMAX_BACK,
                OperatorKind.ELEMENTWISE,
                1.2,
            ),
        ),
    ),
    _Layer(
        "embedding.tokens",
        "Embedding",
        "aten::embedding",
        "aten::index_select",
        _GATHER,
        OperatorKind.EMBEDDING,
        0.3,
        "attention.py:96 forward",
        (("EmbeddingBackward0", "aten::embedding_dense_backward", _SCATTER, OperatorKind.EMBEDDING, 1.6),),
    ),
)


def _layers() -> Iterator[_Layer]:
    for at in range(LAYERS):
        for layer in _BLOCK:
            yield layer._replace(module=f"blocks.{at}.{layer.module}".rstrip("."))
    yield from _HEAD


def _forward() -> Iterator[Work]:
    for a in _layers():
        place = (a.module, a.class_name, Phase.FORWARD, a.caller, a.operator)
        yield Work(*place, a.kernel, a.kind, a.weight, 1, a.line)


def _backward() -> Iterator[Work]:
    for a in _layers():
        for node, operator, kernel, kind, weight in a.back:
            calls = 2 if operator == "aten::mm" else 1
            place = (a.module, a.class_name, Phase.BACKWARD, node, operator)
            yield Work(*place, kernel, kind, weight, calls, a.line)


def _rest() -> Iterator[Work]:
    update = ("Optimizer.step#AdamW.step", "aten::_fused_adamw_", _ADAM, OperatorKind.OPTIMIZER, 1.0, 4)
    yield Work("<optimizer>", "", Phase.OPTIMIZER, *update, "workload.py:130 _update")
    copy = ("aten::to", "aten::copy_", _MEMCPY, OperatorKind.COPY, 1.0, 2)
    yield Work("<copy>", "", Phase.H2D, *copy, "workload.py:120 _to_device")
