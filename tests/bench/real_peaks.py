"""The real peak of real training steps on the CPU, to the byte: what malloc holds at the worst moment.

`python -m tests.bench.real_peaks` reads settings, one JSON object a line, and answers with bytes, one number
a line. It runs under a malloc that counts (peak.c), since readings of the heap, however many, miss peaks.
Each line is trained in a process of its own, as a run is: kernels that are compiled once stay in memory.
"""

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from harness.catalog import MODELS
from harness.catalog.own import is_own
from harness.data.source import open_source
from harness.device.cpu.device import CpuDevice
from harness.models.building import build_model, import_code
from harness.records.data import DataKind, DataShape
from harness.settings.resolve import resolve
from harness.train.warming import load_lazy_parts, warm_up
from harness.train.workload import Workload
from tests.bench.draws import compile_library

_STEPS = 3
_SHAPES = {
    DataKind.IMAGE: DataShape(DataKind.IMAGE, channels=3, height=64, width=64, classes=6),
    DataKind.TEXT: DataShape(DataKind.TEXT, vocabulary=256, sequence_length=64),
}


def real_peaks(
    cases: Sequence[Mapping[str, Any]],
    folder: Path,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = 1800.0,
) -> list[int | None]:
    """The peak of each of the `cases`, in bytes above the baseline before the model is built; None where
    oneDNN has no kernel for it under the limits of `environ`, which is added to this process's environment
    (two threads without it). `folder` takes the compiled counter. Raises CalledProcessError where there is no
    C compiler, or a case fails."""
    added = {"OMP_NUM_THREADS": "2"} if environ is None else dict(environ)
    preloaded = [str(compile_library("peak", folder)), added.get("LD_PRELOAD", "")]
    added["LD_PRELOAD"] = " ".join(filter(None, preloaded))
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.real_peaks"],
        input="".join(json.dumps(case) + "\n" for case in cases),
        stdout=subprocess.PIPE,
        env={**os.environ, **added},
        text=True,
        check=True,
        timeout=timeout_s,
    )
    return [int(line) or None for line in done.stdout.splitlines()]


def main() -> int:
    """Answer line by line, each in a fork. Nothing before it may use torch's threads: they do not survive a
    fork, and the child would wait for them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    load_lazy_parts(torch.device("cpu"))
    lines = sys.stdin.readlines()
    cases = {values["model"]: values for values in map(json.loads, lines)}
    for model, values in cases.items():
        if is_own(model):
            import_code(resolve(values))
            continue
        with torch.device("meta"):  # As the FLOP counter does in a run.
            build_model(resolve({"model": model}), _SHAPES[MODELS[model].accepts])
    for line in lines:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            torch.set_num_threads(threads)
            try:
                print(_peak_bytes(json.loads(line)), flush=True)
            except RuntimeError as error:
                if "primitive" not in str(error):  # As oneDNN calls its kernels.
                    raise
                print(0, flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            print(f"{line.strip()}: exit code {os.waitstatus_to_exitcode(status)}", file=sys.stderr)
            return 1
    return 0


def _peak_bytes(values: Mapping[str, Any]) -> int:
    counter = ctypes.CDLL(None)
    counter.stepscope_in_use.restype = counter.stepscope_peak.restype = ctypes.c_longlong
    settings = resolve(values)
    source = open_source(settings)
    device = CpuDevice.open()
    warm_up(device.torch_device)
    torch.manual_seed(settings.seed)
    gc.collect()
    baseline_bytes = counter.stepscope_in_use()
    workload = Workload(settings, device, build_model(settings, source.shape), source)
    for _ in range(_STEPS):
        counter.stepscope_restart()
        for _ in range(workload.micro_batches):
            batch = workload.next_batch()
            inputs, targets = workload.to_device(batch)
            loss = workload.forward(inputs, targets)
            workload.backward(loss)
        workload.update()
        del batch, inputs, targets, loss
    return int(counter.stepscope_peak() - baseline_bytes)


if __name__ == "__main__":
    sys.exit(main())
