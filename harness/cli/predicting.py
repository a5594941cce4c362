"""`predict`: the memory of a run before it starts, computed in a child process without using the device."""

import argparse
import json
import sys
from argparse import Namespace
from pathlib import Path

from harness.cli.arguments import settings_of
from harness.cli.parser import Parser, add_command
from harness.cli.setting_flags import add_setting_flags
from harness.cli.shell import Shell
from harness.device.cpu.facts import cpu_facts
from harness.device.cpu.heap import open_heap
from harness.device.nvml.driver import Nvml, NvmlUnavailableError
from harness.errors import OUT_OF_MEMORY_CODE, AbsentDeviceError, StepscopeError
from harness.predict.answer import (
    Advice,
    Impossible,
    Prediction,
    Target,
    fit_sentence,
    fits,
    module_rows,
    part_rows,
    peak_sentence,
    remedy_rows,
    to_json,
)
from harness.predict.asking import Predictor
from harness.predict.error_band import error_band
from harness.records.run import DeviceFacts, DeviceKind
from harness.settings import Settings
from harness.settings.spec import check_device
from harness.words import count, size

_ABSENT = "a GPU that is not here"


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands of this module."""
    summary = "predict the memory of a run: will it fit?"
    command = add_command(commands, "predict", summary, predict, is_json=True)
    command.add_argument("model_word", metavar="MODEL", nargs="?", help="as --model")
    command.add_argument("--modules", action="store_true", help="also show the memory of each module")
    command.add_argument(
        "--brief", action="store_true", help="skip the largest batch size and ways to save memory"
    )
    add_setting_flags(command)


def predict(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope predict`; exit code 3 if it does not fit, 1 if it cannot be predicted."""
    settings = settings_of(arguments, shell.environ)
    target = _target(settings)
    with Predictor(shell.home(arguments).path) as predictor:
        answer = predictor.wait(settings, target)
        if isinstance(answer, Impossible):
            raise StepscopeError(answer.reason)
        if not arguments.is_json:
            _print(answer, settings, target, shell)
        advice = None if arguments.brief else predictor.wait_for_advice(settings, target)
    if arguments.is_json:
        documents = {name: _plain(row) for name, row in (("prediction", answer), ("advice", advice))}
        shell.print_json({"target": _plain(target), "fits": fits(answer, settings, target), **documents})
    else:
        if advice is not None:
            _print_advice(advice, settings, shell)
        if arguments.modules:
            _print_modules(answer, shell)
        band = error_band(shell.home(arguments), target)
        band_notes = () if band is None else (band.sentence,)
        for note in (*band_notes, answer.context_note, *answer.notes):
            shell.print_line(f"· {note}")
    return OUT_OF_MEMORY_CODE if fits(answer, settings, target) is False else 0


def _target(settings: Settings) -> Target:
    """Return the selected device, or a placeholder for a GPU that is not present. Imports torch only if there
    may be a GPU. Raises SettingError for a setting that the device does not support."""
    word = settings.device.strip().lower()
    facts: DeviceFacts | None = None
    if word == "cpu" or (word == "auto" and not _may_have_gpu()):
        facts = cpu_facts(open_heap())
    else:
        from harness.device.find import choose, list_devices

        try:
            gpus = [facts for facts in list_devices() if facts.kind is not DeviceKind.CPU]
            facts = choose(word, gpus) or cpu_facts(open_heap())
        except AbsentDeviceError:
            is_nvidia = not word.startswith((DeviceKind.XPU.value, DeviceKind.MPS.value))
            return Target(DeviceKind.CUDA if is_nvidia else DeviceKind(word[:3]), _ABSENT)
    check_device(settings, facts)
    return Target.of(facts)


def _may_have_gpu() -> bool:
    """Return whether there is an NVIDIA driver, or a device folder of other vendors' GPUs."""
    if sys.platform == "darwin" or Path("/dev/dri").exists():
        return True
    try:
        with Nvml():
            return True
    except NvmlUnavailableError:
        return False


def _plain(row: Prediction | Advice | Target | None) -> object:
    return None if row is None else json.loads(to_json(row))


def _print(prediction: Prediction, settings: Settings, target: Target, shell: Shell) -> None:
    shell.print_line(peak_sentence(prediction))
    if prediction.peak_reserved_bytes is not None:
        shell.print_line(f"The caching allocator would reserve {size(prediction.peak_reserved_bytes)}.")
    shell.print_line(fit_sentence(prediction, settings, target))
    shell.print_line("")
    rows = part_rows(prediction)
    shell.print_table(("AT THE PEAK", "SIZE>", "SHARE>"), rows)
    if prediction.context_bytes is not None:
        shell.print_table(("", ""), [("plus context", size(prediction.context_bytes))])
    shell.print_line("")


def _print_advice(advice: Advice, settings: Settings, shell: Shell) -> None:
    if advice.largest_batch:
        now = "" if advice.largest_batch != settings.batch_size else ", the current setting"
        shell.print_line(f"Largest batch size that fits: {count(advice.largest_batch)}{now}.")
    elif advice.largest_batch == 0:
        shell.print_line("Not even a batch size of 1 fits.")
    if advice.remedies:
        shell.print_table(("WAYS TO SAVE MEMORY", "PEAK>", "SAVES>", ""), remedy_rows(advice))
    shell.print_line("")


def _print_modules(prediction: Prediction, shell: Shell) -> None:
    headings = ("MODULE", "CLASS", "PARAMETERS>", "GRADIENTS>", "OPTIMIZER>", "ACTIVATIONS>")
    shell.print_table(headings, module_rows(prediction))
    shell.print_line("")
