"""The worth of pinned memory and non-blocking copies on h200 presets, for batches in the host's memory.

The loader has the preset's own workers; each hands on the same ready batch, so that making samples costs
nothing and copying them does.
"""

from collections.abc import Mapping
from typing import Any

from tests.gpu.comparing import Plan
from tests.gpu.context import Context
from tests.gpu.measures.worth import compare_models

MODELS_IN_ORDER = ("resnet", "hf-vit", "cnn", "mlp", "transformer")
"""The image models, whose batches are large, and one text model, whose batches are not."""
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "pinned": {"pin_memory": True},
    "non_blocking": {"non_blocking": True},
    "pinned + non_blocking": {"pin_memory": True, "non_blocking": True},
    "AMP bf16": {"amp": "bf16"},
    "AMP bf16 + pinned + non_blocking": {"amp": "bf16", "pin_memory": True, "non_blocking": True},
}
"""The faster the step, the more a copy weighs: so also with AMP."""
PLAN = Plan(seconds=8.0, settle=4)
"""A loader that was opened anew has its workers ready, and their batches made, by then."""
_SAMPLES = 1_000_000


def measure(context: Context) -> None:
    """Each model."""
    models = ("mlp",) if context.is_quick else MODELS_IN_ORDER
    compare_models(context, models, VARIANTS, PLAN, from_host=True, data_samples=_SAMPLES)
