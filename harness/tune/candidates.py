"""The changes that a tune compares, from the declarations of the settings: those that the device, the model
and the data have."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.errors import SettingError
from harness.records.run import DeviceFacts
from harness.settings import Settings
from harness.settings.declaration import Effect
from harness.settings.resolve import check_fit
from harness.settings.spec import SPECS, SettingSpec, change, check_device

BATCH = "batch_size"
DEVICE = "device"
# Of the largest batch predicted to fit. Predictions were off by up to some percent (docs/prediction.md), and
# the caching allocator needs more than the peak.
SAFE_SHARE = 0.9
# Settings of use only together.
_TOGETHER: Mapping[str, Mapping[str, Any]] = {"pin_memory": {"non_blocking": True}}
# Its samples are generated on the device, without a loader.
_WITHOUT_LOADER = "synthetic"

Changes = Mapping[str, Any]


def selectable() -> list[str]:
    """Return the names of the settings that a tune can compare."""
    return [spec.name for spec in SPECS.values() if spec.trial_values or spec.name in (BATCH, DEVICE)]


def candidates(settings: Settings, device: DeviceFacts) -> list[Changes]:
    """Return single changes of the baseline `settings`: those of the next step first, those that need another
    process last. Sizes of the batch are `batches`."""
    moments = list(Effect)
    specs = sorted(SPECS.values(), key=lambda spec: moments.index(spec.effect))
    return [changes for spec in specs for changes in _of_setting(spec, settings, device)]


def batches(settings: Settings, largest_batch: int | None) -> list[Changes]:
    """Return the doubled sizes of the batch up to the safe part of `largest_batch`, or of the setting's
    bound."""
    most = SPECS[BATCH].maximum or settings.batch_size
    if largest_batch is not None:
        most = min(most, safe_batch(largest_batch))
    sizes: list[Changes] = []
    size = 2 * settings.batch_size
    while size <= most:
        sizes.append({BATCH: size})
        size *= 2
    return sizes


def safe_batch(largest_batch: int) -> int:
    """Return the largest batch with the safety margin."""
    return int(largest_batch * SAFE_SHARE)


def is_live(changes: Changes) -> bool:
    """Return whether all the changes can be made in a live run."""
    return all(SPECS[name].is_live for name in changes)


def _of_setting(spec: SettingSpec, settings: Settings, device: DeviceFacts) -> Iterator[Changes]:
    if spec.effect is Effect.LOADER and settings.data == _WITHOUT_LOADER:
        return
    for value in spec.trial_values:
        if value == getattr(settings, spec.name):
            continue
        changes = {spec.name: value, **_TOGETHER.get(spec.name, {})}
        try:
            changed = change(settings, changes)
            check_device(changed, device)
            check_fit(changed)
        except SettingError:
            continue
        yield {name: changed.model_dump(mode="json")[name] for name in changes}
