"""Test what kind of work a name stands for."""

import json
from pathlib import Path

import pytest

from harness.profiling.kernel_names import KernelName, parse_kernel_name
from harness.profiling.kinds import classify
from harness.records.profile import OperatorKind

MATERIAL = Path(__file__).parents[1] / "material"

# Transposed convolutions are no layout change (torch's native_functions.yaml and its MKLDNN library).
TRANSPOSED = (
    "aten::cudnn_convolution_transpose",
    "aten::miopen_convolution_transpose",
    "aten::_mps_convolution_transpose",
    "aten::mps_convolution_transpose_backward",
    "aten::conv_transpose2d",
    "mkldnn::_convolution_transpose_pointwise",
)
# Activations and reductions, as sums and exponentials.
POINTWISE = ("elu_", "elu_backward", "softplus", "glu", "max", "amax", "argmax", "logsumexp", "cumsum", "any")


def wrong(file: str) -> dict[str, tuple[str, str]]:
    """The names of a file with another kind than the one beside them: the right kind, and the wrong one."""
    rows = json.loads((MATERIAL / file).read_text(encoding="utf-8"))
    assert rows
    kinds = {row["name"]: (row["kind"], classify(row["name"]).value) for row in rows}
    return {name: pair for name, pair in kinds.items() if pair[0] != pair[1]}


def test_names_from_public_traces_and_threads_have_the_kind_a_person_would_give_them() -> None:
    assert wrong("kernel_names_real.json") == {}


def test_names_of_many_libraries_written_from_their_sources_do_too() -> None:
    assert wrong("kernel_names_written.json") == {}


def test_every_kind_of_work_occurs_in_the_names() -> None:
    rows = json.loads((MATERIAL / "kernel_names_written.json").read_text(encoding="utf-8"))
    assert {row["kind"] for row in rows} == {kind.value for kind in OperatorKind} - {OperatorKind.IDLE}


@pytest.mark.parametrize(
    ("name", "function", "template"),
    [
        ("void f<int>(float*)", "f", "int>"),
        ("void (anonymous namespace)::g<4, h(A&)::{lambda()#1}>(int)", "g", "4, h::{lambda#1}>"),
        ("void a::b<int, (cudnnRNNMode_t)0>(int, int,", "a::b", "int, 0>"),
        ("fmha_cutlassF(Attention::Params", "fmha_cutlassf", ""),
        (
            "std::enable_if<!(false), void>::type internal::gemvx::kernel<int>(P<int>)",
            "internal::gemvx::kernel",
            "int>",
        ),
        ("nvjet_hsh_192x192", "nvjet_hsh_192x192", ""),
        ("void", "void", ""),
        ("", "", ""),
    ],
)
def test_a_declaration_is_taken_apart_wherever_it_is_cut_off(name: str, function: str, template: str) -> None:
    assert parse_kernel_name(name) == KernelName(function, template)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::addmm", OperatorKind.MATMUL),
        ("aten::mm", OperatorKind.MATMUL),
        ("autograd::engine::evaluate_function: MmBackward0", OperatorKind.MATMUL),
        ("triton_tem_fused_addmm_3", OperatorKind.MATMUL),
        ("triton_red_fused_native_layer_norm_2", OperatorKind.NORMALIZATION),
        ("triton_poi_fused_add_mul_1", OperatorKind.ELEMENTWISE),
        ("## Call CompiledFxGraph fitu ##", OperatorKind.ELEMENTWISE),
        ("ampere_sgemm_128x64_nn", OperatorKind.MATMUL),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>", OperatorKind.MATMUL),
        ("aten::mkldnn_convolution", OperatorKind.CONVOLUTION),
        ("aten::convolution_backward", OperatorKind.CONVOLUTION),
        ("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32", OperatorKind.CONVOLUTION),
        ("aten::_scaled_dot_product_flash_attention", OperatorKind.ATTENTION),
        ("pytorch_flash::flash_fwd_kernel", OperatorKind.ATTENTION),
        ("aten::native_batch_norm_backward", OperatorKind.NORMALIZATION),
        ("cudnn::bn_fw_tr_1C11_kernel_NCHW", OperatorKind.NORMALIZATION),
        ("aten::mul_", OperatorKind.ELEMENTWISE),
        ("aten::clamp_min", OperatorKind.ELEMENTWISE),
        ("aten::_log_softmax", OperatorKind.ELEMENTWISE),
        ("void at::native::vectorized_elementwise_kernel<4>", OperatorKind.ELEMENTWISE),
        ("aten::copy_", OperatorKind.COPY),
        *((name, OperatorKind.CONVOLUTION) for name in TRANSPOSED),
        ("aten::transpose_copy", OperatorKind.LAYOUT),
        *((f"aten::{name}", OperatorKind.MATMUL) for name in ("outer", "bilinear", "inner", "addr")),
        *((f"aten::{name}", OperatorKind.COPY) for name in ("scatter_add_", "index_add_", "index_copy")),
        *((f"aten::{name}", OperatorKind.ELEMENTWISE) for name in POINTWISE),
        ("Memcpy HtoD (Pinned -> Device)", OperatorKind.COPY),
        ("Optimizer.step#AdamW.step", OperatorKind.OPTIMIZER),
        ("aten::_fused_adamw_", OperatorKind.OPTIMIZER),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", OperatorKind.COMMUNICATION),
        ("aten::_local_scalar_dense", OperatorKind.OTHER),
    ],
)
def test_work_is_told_by_its_name(name: str, kind: OperatorKind) -> None:
    assert classify(name) is kind
