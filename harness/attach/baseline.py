"""The baseline of a script's memory on the CPU: the part of malloc's heap that is not the training's."""

from torch._C import DisableTorchFunctionSubclass

from harness.attach.guard import ScriptGuard
from harness.attach.import_memory import ImportMemory
from harness.device.cpu.device import CpuDevice
from harness.device.cpu.heap import HeapSize
from harness.device.host.mapped_files import MappedFiles
from harness.tracking.owners import address_of, other_tensors, storage_bytes


class ScriptBaseline:
    """Measures what is not the training's until the training begins: what is in use at first, without
    tensors, then imported modules, and at last what Stepscope allocates itself."""

    def __init__(self, device: CpuDevice, guard: ScriptGuard, *, has_tensors: bool = True) -> None:
        """Begin the memory of `device`; `guard` runs what may fail. `has_tensors`: there may be tensors
        already, which takes a search of all objects (some 50 ms)."""
        self._device = device
        device.begin_memory()
        if has_tensors:
            guard.run(self._add_tensors)
        self._imports = ImportMemory(device.heap_size, guard)
        self._before = HeapSize()

    def training_begins(self) -> None:
        """The training begins: later imports count, as all that the script allocates."""
        self._device.leave_out(self._imports.close())
        self._before = self._device.heap_size()

    def training_has_begun(self) -> None:
        """Everything allocated since `training_begins` is Stepscope's."""
        self._device.leave_out(self._device.heap_size().minus(self._before))

    def close(self) -> None:
        """End measuring. Idempotent."""
        self._imports.close()

    def _add_tensors(self) -> None:
        """Count the tensors that exist already as the training's, as those of the model of a script that
        calls `stepscope.watch`. Those in mapped files or in shared memory are not in the heap."""
        with DisableTorchFunctionSubclass():
            tensors = [tensor for tensor, _ in other_tensors("cpu", set())]
            files = MappedFiles()
            in_heap = [tensor for tensor in tensors if not files.contains(address_of(tensor) or 0)]
            size_bytes = sum(map(storage_bytes, in_heap))
        self._device.leave_out(HeapSize(-size_bytes, -size_bytes))
