"""Sets of devices on which a setting has an effect."""

from harness.records import DeviceKind

CUDA_ONLY = frozenset({DeviceKind.CUDA})
# Devices with a memory of their own, to which batches are copied. Apple's GPUs share the CPU's, and a copy
# that does not block corrupts data there (pytorch/pytorch issues 139550 and 189690).
COPIED_TO = frozenset({DeviceKind.CUDA, DeviceKind.XPU})
