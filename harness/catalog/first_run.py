"""The size of a run for which neither a model nor a size was selected."""

from harness.catalog.models import model

# The default model's second preset is for a GPU with 8 GiB.
_MIN_GPU_BYTES = 8 * 1000**3


def default_preset(model_key: str, gpu_memory_bytes: int | None) -> str:
    """Return the size that suits the device: the smallest on the CPU (`gpu_memory_bytes` None) and on a small
    GPU, else the next one, whose peak of some GiB leaves memory for larger batches on every such GPU."""
    presets = model(model_key).presets
    is_large = gpu_memory_bytes is not None and gpu_memory_bytes >= _MIN_GPU_BYTES
    return presets[min(int(is_large), len(presets) - 1)].name
