"""`doctor`: the capabilities of this machine, and remedies for problems."""

import argparse
from argparse import Namespace

from harness import words
from harness.cli.parser import Parser, add_command
from harness.cli.shell import Shell
from harness.device.doctor.report import Check, DeviceReport, DoctorReport, Status, to_json
from harness.errors import HomeError
from harness.predict.probe import kernel_report
from harness.records.run import DeviceFacts, DeviceKind

_KERNELS = "Memory of CPU kernels"


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands of this module."""
    add_command(commands, "doctor", "check what this machine supports", examine, is_json=True)


def examine(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope doctor`; exit code 1 if there is a problem. Imports torch."""
    from harness.device.doctor import examine as doctor

    examination = doctor.run_checks()
    checks = (*examination.checks, *_check_kernels(arguments, shell), _check_home(arguments, shell))
    report = examination._replace(checks=checks)
    if arguments.is_json:
        shell.out.file.write(to_json(report) + "\n")
    else:
        _print(report, shell)
    return 1 if report.worst is Status.PROBLEM else 0


def _check_kernels(arguments: Namespace, shell: Shell) -> list[Check]:
    """Check the measurement of the CPU kernels' memory, which predictions for the CPU use. With --json, as
    the System page runs it, only an earlier measurement is reported, to save time."""
    report = kernel_report(shell.home(arguments).path, measures=not arguments.is_json)
    if report is not None:
        return [Check(_KERNELS, Status.OK, report.words)]
    if arguments.is_json:
        return []
    advice = "Predictions for the CPU leave it out; it needs Linux and glibc's malloc, 2.33 or newer."
    return [Check(_KERNELS, Status.UNAVAILABLE, "could not be measured", advice)]


def _check_home(arguments: Namespace, shell: Shell) -> Check:
    home = shell.home(arguments)
    try:
        home.check_writable()
    except HomeError as error:
        return Check("Home", Status.PROBLEM, str(home.path), str(error))
    return Check("Home", Status.OK, str(home.path))


def _print(report: DoctorReport, shell: Shell) -> None:
    checks = [(check.status.value, check.name, _sentence(check)) for check in report.checks]
    shell.print_table(("", "CHECK", "RESULT"), checks)
    shell.print_line("")
    shell.print_table(
        ("DEVICE", "NAME", "MEMORY>", "CAPABILITY", "UNITS>", "POWER LIMIT>", "AMP", "TENSOR CORES"),
        [_device_line(device) for device in report.devices],
    )
    for device in report.devices:
        for limit in device.limits:
            shell.print_line(f"{device.facts.torch_name}: {limit}")


def _sentence(check: Check) -> str:
    return f"{check.value}. {check.advice}" if check.advice else check.value


def _device_line(device: DeviceReport) -> tuple[str, ...]:
    facts = device.facts
    capability = facts.capability
    return (
        facts.torch_name,
        facts.name,
        words.size(facts.memory_bytes),
        words.NOT_AVAILABLE if capability is None else f"{capability[0]}.{capability[1]}",
        words.count(facts.multiprocessors),
        words.NOT_AVAILABLE if facts.power_limit_w is None else f"{facts.power_limit_w:.0f} W",
        ", ".join(mode.value for mode in facts.amp_modes),
        device.tensor_cores or ("none" if _is_in_catalog(facts) else words.NOT_AVAILABLE),
    )


def _is_in_catalog(facts: DeviceFacts) -> bool:
    """Return whether the absence of tensor cores is certain: by NVIDIA's compute capability, or on a CPU."""
    return facts.capability is not None or facts.kind is DeviceKind.CPU
