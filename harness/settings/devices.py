"""The sets of devices that settings apply to."""

from harness.records.run import DeviceKind

CPU_ONLY = frozenset({DeviceKind.CPU})
CUDA_ONLY = frozenset({DeviceKind.CUDA})
# Devices with separate memory, to which batches are copied. Apple GPUs share the CPU's memory, and
# non-blocking copies corrupt data there (pytorch/pytorch issues 139550 and 189690).
COPIED_TO = frozenset({DeviceKind.CUDA, DeviceKind.XPU})
