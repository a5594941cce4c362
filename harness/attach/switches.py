"""Settings that change in a live script without its help."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from harness.attach.autocast import RegionState, ScriptAutocast
from harness.attach.learning_rates import LearningRateFactor, reads_rate
from harness.attach.loader_refusals import is_one_of_several
from harness.attach.loaders import LOADER_SETTINGS, LoaderSwitch
from harness.attach.reasons import (
    ALL_DROPPED,
    MIXED_PRECISION_APIS,
    NO_BF16_REPLICAS,
    NO_FLOAT32,
    NO_LSTM,
    NO_OPTIMIZER,
    NO_PLACE,
    NO_RATE,
    NO_SCALER,
    ONE_LEFT,
    OTHER_RANKS,
    OWN_AUTOCAST,
    REASONS,
)
from harness.attach.training import ScriptTraining
from harness.device.protocol import Device
from harness.errors import SettingError
from harness.models.recurrent import has_bf16_lstm
from harness.records.run import AmpMode
from harness.records.script import SettingValue
from harness.settings import Settings
from harness.settings.declaration import MatmulPrecision
from harness.settings.profile_steps import parse_profile_at
from harness.settings.spec import SPECS, change

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
STEP_SETTINGS = (
    "amp",
    "matmul_precision",
    "cudnn_benchmark",
    "learning_rate_factor",
    "empty_cache_every",
    "memory_cap_gib",
)


class ScriptSwitches:
    """Puts settings into effect in a script, see `harness.watch.live_settings.Adjustable`.

    Attributes:
        names: the settings that the run has, beside those of its loader.
        reasons: the reason for each other setting, with a way to have its effect.
        loaders: the switch of the loader's settings.
        autocast: the script's mixed precision.
        rates: the factor of the script's learning rates.
        has_scaler: whether the script scaled a loss by an enabled GradScaler.
        own: the values of the settings that the script declares.
        own_tidy: the work at the end of a step that these settings ask for.
    """

    def __init__(
        self,
        training: ScriptTraining,
        device: Device,
        loaders: LoaderSwitch,
        run: Callable[..., object],
    ) -> None:
        """Puts the settings that torch and the script have at the moment into `training.settings`. `run`
        calls a function of ours from a hook within the script's step, and handles its errors."""
        self._training = training
        self.loaders = loaders
        self.own: dict[str, SettingValue] = {}
        self._device = device
        self.names: list[str] = [*STEP_SETTINGS, *WATCH_SETTINGS]
        self.reasons: dict[str, str] = dict(REASONS)
        self.autocast = ScriptAutocast(device.torch_device.type)
        self.rates = LearningRateFactor(run)
        self.has_scaler = False
        self._own_precision: tuple[MatmulPrecision, bool] | None = None
        self.own_tidy = training.calls.tidy = self._tidy
        training.settings = self._initial_settings()

    @property
    def settings(self) -> Settings:
        """The settings in effect."""
        return self._training.settings

    def found_values(self) -> dict[str, Any]:
        """Take notice of a mode that has changed by itself, as where the script turned out to have autocast
        regions; return the values of settings that describe it."""
        self.autocast.has_news = False
        if self._can_switch_own():
            return {"amp": self.autocast.own_mode}
        self.withdraw("amp", OWN_AUTOCAST)
        return {}

    def unavailable(self) -> dict[str, str]:
        """Return the reason for each setting that cannot change in this script."""
        refusals = {name: self.loaders.refusal(name) for name in LOADER_SETTINGS}
        return self.reasons | {name: reason for name, reason in refusals.items() if reason is not None}

    def offer(self, name: str) -> None:
        """Let the run have the setting `name` from now on."""
        if name not in self.names:
            self.names.append(name)
        self.reasons.pop(name, None)

    def withdraw(self, name: str, reason: str) -> None:
        """Let the run no longer have the setting `name`, for `reason`."""
        if name in self.names:
            self.names.remove(name)
        self.reasons[name] = reason

    def offer_rates(self) -> bool:
        """Let the run have the factor of learning rates where an optimizer with one was found by now; return
        whether it did not have it before."""
        is_new = "learning_rate_factor" not in self.names and self._rates_refusal() is None
        if is_new:
            self.offer("learning_rate_factor")
        return is_new

    def validate(self, settings: Settings, changed: Sequence[str]) -> None:
        """Raise SettingError for a setting that this script does not have."""
        for name in changed:
            if name in LOADER_SETTINGS:
                if (reason := self.loaders.refusal(name)) is not None:
                    raise SettingError(name, reason)
            elif name not in self.names:
                raise SettingError(name, f"{name} cannot change in this script. {self.reasons[name]}")
        if "batch_size" in changed:
            self._validate_size(settings.batch_size)
        if "amp" in changed and settings.amp is not AmpMode.OFF:
            self._validate_amp(settings.amp)
        if "learning_rate_factor" in changed and (reason := self._rates_refusal()) is not None:
            raise SettingError(
                "learning_rate_factor", f"learning_rate_factor cannot change in this script. {reason}"
            )
        parse_profile_at(settings.profile_at)

    def _validate_amp(self, mode: AmpMode) -> None:
        if mode is AmpMode.FP16 and not self._can_scale():
            raise SettingError("amp", NO_SCALER)
        if (dtype := self._fixed_dtype()) is not None:
            raise SettingError("amp", NO_FLOAT32.format(mode=mode.value, dtype=dtype))
        if mode is AmpMode.BF16 and (reason := self._bf16_refusal()) is not None:
            raise SettingError("amp", reason)
        if self.autocast.own_dtype is None and not self.autocast.has_place:
            raise SettingError("amp", NO_PLACE.format(mode=mode.value))

    def _validate_size(self, size: int) -> None:
        if (samples := self.loaders.samples_dropped_by(size)) is not None:
            raise SettingError("batch_size", ALL_DROPPED.format(size=size, samples=samples))
        if self._has_batch_norm() and self.loaders.would_leave_one_sample(size):
            raise SettingError("batch_size", ONE_LEFT.format(size=size))

    def recorded(self, settings: Settings) -> dict[str, Any]:
        """Return the values of the settings that this run has."""
        values = settings.model_dump(mode="json")
        names = {*self.names, *self.loaders.values()}
        return {name: values[name] for name in SPECS if name in names} | self.own

    def take_over(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Take over the values that the loader has by itself; return all recorded values."""
        self._training.settings = self._training.settings.model_copy(update=values)
        return self.recorded(self._training.settings)

    def reconfigure(self, settings: Settings) -> str | None:
        """Put `settings` into effect; returns a remark on when, if not at once. What did not change stays as
        the script has it."""
        before = self.settings
        remarks = [self.loaders.apply(settings), self.autocast.apply(settings.amp)]
        if settings.matmul_precision is not before.matmul_precision:
            self._set_matmul_precision(settings.matmul_precision, before.matmul_precision)
        if settings.cudnn_benchmark != before.cudnn_benchmark:
            torch.backends.cudnn.benchmark = settings.cudnn_benchmark
        self.rates.factor = settings.learning_rate_factor
        self._training.settings = settings
        return " ".join(remark for remark in remarks if remark is not None) or None

    def run_forward(self, call: Callable[[], Any]) -> Any:
        """Return the output of a model's `call`, under the mode in effect."""
        return self.autocast.run_forward(call)

    def region_entered(self, region: torch.autocast) -> RegionState | None:
        """Return the state for an autocast region of the script; None: its own."""
        return self.autocast.region_entered(region)

    def close(self) -> None:
        """Restore what is changed within a step. Idempotent."""
        self.rates.restore()

    def _initial_settings(self) -> Settings:
        values: dict[str, Any] = {"cudnn_benchmark": torch.backends.cudnn.benchmark, **self.loaders.values()}
        # Not one of the script's settings, but what a capture has to know.
        values["compile"] = is_compiled(self._training.model)
        try:
            values["matmul_precision"] = MatmulPrecision(torch.get_float32_matmul_precision())
        except RuntimeError:
            self.withdraw("matmul_precision", MIXED_PRECISION_APIS)
        if self.autocast.has_news:
            values |= self.found_values()
        if (reason := self._rates_refusal()) is not None:
            self.withdraw("learning_rate_factor", reason)
        return change(self.settings, values)

    def _can_switch_own(self) -> bool:
        mode = self.autocast.own_mode
        return self.autocast.is_supported and mode in self._device.facts.amp_modes

    def _can_scale(self) -> bool:
        return self.has_scaler or self.autocast.own_mode is AmpMode.FP16

    def _fixed_dtype(self) -> str | None:
        """Return the data type of weights of which none is in float32, where the script has no mode of its
        own: autocast leaves those as they are."""
        if self.autocast.own_mode is not AmpMode.OFF:
            return None
        weights = (weight for model in self._training.models for weight in model.parameters())
        dtypes = {weight.dtype for weight in weights if weight.is_floating_point()}
        if not dtypes or torch.float32 in dtypes:
            return None
        return ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))

    def _bf16_refusal(self) -> str | None:
        if self.autocast.own_mode is AmpMode.BF16:
            return None
        layers = [layer for model in self._training.models for layer in model.modules()]
        # `torch.nn.parallel.parallel_apply` enters an autocast without a data type on its threads.
        if any(isinstance(layer, nn.DataParallel) and len(layer.device_ids) > 1 for layer in layers):
            return NO_BF16_REPLICAS
        has_lstm = self._device.torch_device.type == "cpu" and any(isinstance(one, nn.LSTM) for one in layers)
        return NO_LSTM if has_lstm and not has_bf16_lstm() else None

    def _has_batch_norm(self) -> bool:
        layers = (layer for model in self._training.models for layer in model.modules())
        return any(isinstance(layer, nn.BatchNorm1d) and layer.training for layer in layers)

    def _rates_refusal(self) -> str | None:
        """Return the reason that the learning rates cannot be multiplied; None: they can."""
        optimizers = self._training.optimizers
        if not any(map(reads_rate, optimizers)):
            return NO_RATE if optimizers else NO_OPTIMIZER
        return OTHER_RANKS if is_one_of_several() and not self.loaders.changes_together else None

    def _set_matmul_precision(self, value: MatmulPrecision, before: MatmulPrecision) -> None:
        """Set it for products, and for cuDNN's convolutions as in runs of the catalog."""
        if self._own_precision is None:
            self._own_precision = before, torch.backends.cudnn.allow_tf32
        own, own_allows_tf32 = self._own_precision
        allows_tf32 = own_allows_tf32 if value is own else value is not MatmulPrecision.HIGHEST
        torch.set_float32_matmul_precision(value.value)
        try:
            torch.backends.cudnn.allow_tf32 = allows_tf32
        except RuntimeError:
            torch.set_float32_matmul_precision(before.value)
            raise

    def _tidy(self, step: int) -> None:
        every = self.settings.empty_cache_every
        if every and step % every == 0:
            self._device.empty_cache()


def is_compiled(model: nn.Module) -> bool:
    """Return whether any module was compiled, as a wrapper or in place. Does not import torch's compiler."""
    return any(
        type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
        for module in model.modules()
    )
