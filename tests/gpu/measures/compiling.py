"""The worth of torch.compile on the h200 presets, and how long it takes to compile."""

from collections.abc import Mapping
from typing import Any

from tests.gpu.comparing import Plan
from tests.gpu.context import Context
from tests.gpu.measures.worth import MODELS_IN_ORDER as MODELS
from tests.gpu.measures.worth import compare_models

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "AMP bf16": {"amp": "bf16"},
    "compile": {"compile": True},
    "compile + AMP bf16": {"compile": True, "amp": "bf16"},
}
PLAN = Plan(seconds=8.0)
_SHALLOW = ("mlp", "cnn")
MODELS_IN_ORDER = (*_SHALLOW, *(model for model in MODELS if model not in _SHALLOW))
"""Those that compile soon first: on an H200 the transformer alone took over a minute."""


def measure(context: Context) -> None:
    """Each model, as far as the time goes: compiling a deep one takes a minute."""
    models = ("mlp",) if context.is_quick else MODELS_IN_ORDER
    compare_models(context, models, VARIANTS, PLAN)
