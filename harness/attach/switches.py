"""Settings that change in a live script without its help."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from harness.attach.loaders import LOADER_SETTINGS, LoaderSwitch
from harness.attach.training import ScriptTraining
from harness.device.protocol import Device
from harness.errors import SettingError
from harness.records.run import AmpMode
from harness.settings import Settings
from harness.settings.declaration import MatmulPrecision
from harness.settings.profile_steps import parse_profile_at
from harness.settings.spec import SPECS

# The settings of a run that trains a script, beside those of its loader.
WATCH_SETTINGS = (
    "max_steps",
    "max_seconds",
    "stall_after_s",
    "profile_at",
    "measure_overhead",
    "memory_history",
    "hunt_leaks",
)
STEP_SETTINGS = ("amp", "matmul_precision", "cudnn_benchmark", "empty_cache_every", "memory_cap_gib")


class ScriptSwitches:
    """Puts settings into effect in a script, see `harness.watch.live_settings.Adjustable`.

    Attributes:
        run_forward: calls the model, under autocast when AMP is on.
        loaders: the switch of the loader's settings.
    """

    def __init__(self, training: ScriptTraining, device: Device, loaders: LoaderSwitch) -> None:
        self._training = training
        self.loaders = loaders
        self._device = device
        self.names: list[str] = [*STEP_SETTINGS, *WATCH_SETTINGS]
        self.run_forward: Callable[[Callable[[], Any]], Any] = _plain
        training.calls.tidy = self._tidy

    @property
    def settings(self) -> Settings:
        """The settings in effect."""
        return self._training.settings

    def validate(self, settings: Settings, changed: Sequence[str]) -> None:
        """Raise SettingError for a setting that this script does not have."""
        for name in changed:
            if name in LOADER_SETTINGS:
                if (reason := self.loaders.refusal(name)) is not None:
                    raise SettingError(name, reason)
            elif name not in self.names:
                raise SettingError(
                    name,
                    f"{SPECS[name].label} is for models of the catalog; this run trains a script.",
                )
        if settings.amp is AmpMode.FP16:
            raise SettingError("amp", "amp cannot be 'fp16' without a GradScaler in the script; try 'bf16'.")
        parse_profile_at(settings.profile_at)

    def recorded(self, settings: Settings) -> dict[str, Any]:
        """Return the values of the settings that this run has."""
        values = settings.model_dump(mode="json")
        names = {*self.names, *self.loaders.values()}
        return {name: values[name] for name in SPECS if name in names}

    def take_over(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Take over the values that the loader has by itself; return all recorded values."""
        self._training.settings = self._training.settings.model_copy(update=values)
        return self.recorded(self._training.settings)

    def reconfigure(self, settings: Settings) -> str | None:
        """Put `settings` into effect; returns a remark on when, if not at once."""
        remark = self.loaders.apply(settings)
        torch.set_float32_matmul_precision(settings.matmul_precision.value)
        if settings.matmul_precision is not self.settings.matmul_precision:
            torch.backends.cudnn.allow_tf32 = settings.matmul_precision is not MatmulPrecision.HIGHEST
        torch.backends.cudnn.benchmark = settings.cudnn_benchmark
        self.run_forward = _plain if settings.amp is AmpMode.OFF else self._run_in_bf16
        self._training.settings = settings
        return remark

    def _run_in_bf16(self, call: Callable[[], Any]) -> Any:
        with torch.autocast(self._device.torch_device.type, dtype=torch.bfloat16):
            output = call()
        return in_float32(output)

    def _tidy(self, step: int) -> None:
        every = self.settings.empty_cache_every
        if every and step % every == 0:
            self._device.empty_cache()


def initial_settings() -> Settings:
    """Return the settings that torch has at the moment; the rest have their default."""
    return Settings(
        matmul_precision=MatmulPrecision(torch.get_float32_matmul_precision()),
        cudnn_benchmark=torch.backends.cudnn.benchmark,
    )


def in_float32(output: Any) -> Any:
    """Return `output` with its half-precision tensors in float32, as the script expects them."""
    if isinstance(output, Tensor):
        return output.float() if output.dtype in (torch.float16, torch.bfloat16) else output
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return type(output)(*map(in_float32, output))
    if isinstance(output, list | tuple):
        return type(output)(map(in_float32, output))
    if isinstance(output, Mapping) and hasattr(output, "update"):
        for key in list(output):
            output[key] = in_float32(output[key])  # type: ignore[index]  # such as transformers' ModelOutput
    return output


def _plain(call: Callable[[], Any]) -> Any:
    return call()
