"""The doctor's checks as pure functions: from versions and counts to a status and a sentence."""

from harness.device.doctor.report import Check, Status

_WHEELS = "https://pytorch.org/get-started/locally"


def check_cuda(
    torch_version: str,
    built_for: str | None,
    visible_gpus: int,
    reason: str,
    driver: str | None,
    driver_cuda: tuple[int, int] | None,
    nvml_gpus: int,
    visible_devices: str | None,
) -> Check:
    """Check that torch's CUDA build and the NVIDIA driver are compatible.

    Args:
        torch_version: the version of torch.
        built_for: the CUDA version of the torch build, as in "13.0"; None for a CPU build.
        visible_gpus: the number of GPUs that torch can use.
        reason: torch's reason when there are none.
        driver: the driver's version, None without NVML.
        driver_cuda: the newest CUDA version that the driver supports.
        nvml_gpus: the number of GPUs that the driver lists.
        visible_devices: the value of CUDA_VISIBLE_DEVICES, which may hide GPUs intentionally.

    Any driver of the build's major CUDA version or a newer one is compatible (CUDA minor version and backward
    compatibility).
    """
    name = "CUDA and driver"
    supports = "no NVIDIA driver" if driver is None else f"driver {driver}"
    if driver_cuda is not None:
        supports += f" for CUDA up to {driver_cuda[0]}.{driver_cuda[1]}"
    if built_for is None:
        value = f"torch {torch_version} is built without CUDA; {supports}"
        if nvml_gpus == 0:
            return Check(name, Status.UNAVAILABLE, value)
        advice = f"This torch cannot use the GPU of this machine: install a CUDA build of torch ({_WHEELS})."
        return Check(name, Status.PROBLEM, value, advice)
    value = f"torch is built for CUDA {built_for}; {supports}"
    major = int(built_for.split(".")[0])
    if driver_cuda is not None and driver_cuda[0] < major:
        advice = (
            f"The driver is too old for this torch: update it to one for CUDA {major}, or install a torch "
            f"built for CUDA {driver_cuda[0]} ({_WHEELS})."
        )
        return Check(name, Status.PROBLEM, value, advice)
    if visible_gpus > 0:
        return Check(name, Status.OK, f"{value}; they are compatible" if driver_cuda is not None else value)
    if nvml_gpus == 0:
        return Check(name, Status.UNAVAILABLE, f"{value}; no GPU: {reason}")
    if visible_devices is not None:
        advice = f"CUDA_VISIBLE_DEVICES is {visible_devices!r}: unset it to train on the GPU."
        return Check(name, Status.WARNING, f"{value}; the GPU is hidden from torch", advice)
    advice = "The driver lists a GPU that torch cannot use: check that nvidia-smi works, and reboot."
    return Check(name, Status.PROBLEM, f"{value}; {reason}", advice)


def check_cudnn(version: int | str | None) -> Check:
    """Check cuDNN's version number, or the reason why it has none.

    The number 91002 is version 9.10.2, and before version 9, 8907 is 8.9.7.
    """
    if version is None:
        return Check("cuDNN", Status.UNAVAILABLE, "this torch has none")
    if isinstance(version, str):
        advice = "Remove the folder of the other cuDNN from LD_LIBRARY_PATH, or install the one torch names."
        return Check("cuDNN", Status.PROBLEM, version, advice)
    major, rest = divmod(version, 10_000) if version >= 90_000 else divmod(version, 1000)
    return Check("cuDNN", Status.OK, f"{major}.{rest // 100}.{rest % 100}")


def check_sqlite(version: tuple[int, int, int]) -> Check:
    """Check that the version of SQLite supports a log.

    STRICT tables need 3.37. From 3.7.0 to 3.51.2 two connections that write one WAL file at once can lose
    pages (fixed in 3.51.3, 3.50.7 and 3.44.6).
    """
    name, value = "SQLite", ".".join(map(str, version))
    if version < (3, 37, 0):
        return Check(
            name, Status.PROBLEM, value, "Stepscope needs SQLite 3.37 or newer: use a newer Python build."
        )
    fixed = version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51, 0) or (3, 44, 6) <= version < (3, 45, 0)
    if fixed:
        return Check(name, Status.OK, value)
    return Check(
        name,
        Status.OK,
        f"{value}, which can lose pages when two connections write a WAL file at once; Stepscope writes each "
        "file from one connection, so it is not affected",
    )


def tensor_cores(capability: tuple[int, int] | None, name: str) -> str | None:
    """Return the generation of the tensor cores by compute capability, None without tensor cores.

    Source: NVIDIA's architecture white papers; GeForce GTX 16 boards are Turing (7.5) without tensor cores.
    """
    if capability is None or capability < (7, 0) or "GTX 16" in name:
        return None
    if capability < (7, 5):
        return "1st generation (Volta)"
    if capability < (8, 0):
        return "2nd generation (Turing)"
    if capability < (8, 9):
        return "3rd generation (Ampere)"
    if capability < (9, 0):
        return "4th generation (Ada)"
    if capability < (10, 0):
        return "4th generation (Hopper)"
    return "5th generation (Blackwell)" if capability < (13, 0) else "newer than this version knows"
