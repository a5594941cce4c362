"""The processor of measured CPU kernels: everything that determines their memory. Does not import torch."""

import os
from functools import cache
from typing import NamedTuple

from harness.device.cpu.facts import cpu_name
from harness.device.host.cores import usable_cores

# Environment variables that limit torch's libraries to some of the processor's instructions, or change their
# memory.
ISA_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR",
    "MKL_DISABLE_FAST_MM",
)
# Environment variables that set the number of torch's threads; without one it follows the cores.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_THREAD_LIMIT")


class Processor(NamedTuple):
    """A processor and its limits for torch. `variables`: those set in the environment, by name."""

    name: str
    cores: int | None
    variables: tuple[tuple[str, str], ...]


@cache
def this_processor() -> Processor:
    """Return this machine's processor, as available to this process and its children."""
    names = sorted((*ISA_VARIABLES, *THREAD_VARIABLES))
    variables = tuple((name, os.environ[name]) for name in names if os.environ.get(name))
    return Processor(cpu_name(), usable_cores(), variables)
