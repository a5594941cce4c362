"""What kind of work an operator or a kernel does, told by its name; pure, and free of torch."""

from harness.profile_records import Kind

_PARTS: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    (Kind.COMMUNICATION, ("nccl", "c10d::", "gloo:", "allreduce", "all_reduce", "all_gather")),
    (Kind.COPY, ("memcpy", "memset", "copy_kernel", "catarraybatchedcopy", "fillfunctor")),
    (Kind.OPTIMIZER, ("optimizer.", "_fused_adam", "_fused_sgd", "_foreach_", "fusedadam", "multi_tensor")),
    (Kind.ATTENTION, ("attention", "flash", "fmha", "sdpa")),
    (Kind.NORMALISATION, ("batch_norm", "batchnorm", "layer_norm", "layernorm", "group_norm", "rms_norm")),
    (Kind.NORMALISATION, ("groupnorm", "rmsnorm", "rowwisemoments", "gammabeta", "bn_fw", "bn_bw")),
    (Kind.CONVOLUTION, ("conv", "cudnn", "wgrad", "dgrad", "fprop", "winograd", "implicit_gemm")),
    (Kind.MATMUL, ("gemm", "gemv", "cublas", "cutlass", "nvjet", "splitk", "triton_tem")),
    (Kind.MATMUL, ("aten::linear", "mmbackward")),
    (Kind.ELEMENTWISE, ("elementwise", "softmax", "relu", "gelu", "silu", "tanh", "sigmoid", "dropout")),
    (Kind.ELEMENTWISE, ("threshold_backward", "reduce_kernel", "triton_poi", "triton_red", "triton_per")),
    (Kind.ELEMENTWISE, ("compiledfxgraph",)),
)
"""The first line with a part of the name decides: cuDNN's own batch norm is no convolution, a convolution
done by implicit_gemm is no matrix multiply. Kernels are named by cuBLAS (gemm, nvjet), CUTLASS, cuDNN, NCCL,
PyTorch's own sources (aten/src/ATen/native/cuda) and its compiler (triton_poi is pointwise, triton_tem a
product; what a compiled graph does on the CPU without calling operators is fused pointwise work)."""

_OPERATORS: dict[Kind, frozenset[str]] = {
    Kind.MATMUL: frozenset(
        [
            "mm",
            "bmm",
            "addmm",
            "addbmm",
            "baddbmm",
            "matmul",
            "addmv",
            "mv",
            "dot",
            "einsum",
            "_scaled_mm",
        ]
    ),
    Kind.COPY: frozenset(
        [
            "copy_",
            "to",
            "_to_copy",
            "clone",
            "contiguous",
            "cat",
            "stack",
            "fill_",
            "zero_",
            "index_select",
        ]
    ),
    Kind.ELEMENTWISE: frozenset(
        [
            "add",
            "sub",
            "mul",
            "div",
            "sqrt",
            "rsqrt",
            "exp",
            "log",
            "pow",
            "neg",
            "lerp",
            "addcmul",
            "addcdiv",
            "clamp",
            "clamp_min",
            "clamp_max",
            "sum",
            "mean",
            "where",
            "abs",
            "maximum",
            "minimum",
            "native_dropout",
            "norm",
        ]
    ),
}
"""Operators of ATen by their whole name, a trailing underscore (in place) aside."""


def classify(name: str) -> Kind:
    """The kind of work of an operator ("aten::addmm") or kernel ("sm90_xmma_gemm_…"); OTHER when its name
    does not tell."""
    low = name.lower()
    namespace, _, operator = low.rpartition("::")
    if namespace == "aten":
        for kind, names in _OPERATORS.items():
            if operator in names or operator.removesuffix("_") in names:
                return kind
    for kind, parts in _PARTS:
        if any(part in low for part in parts):
            return kind
    return Kind.OTHER
