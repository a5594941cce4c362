"""Configurations at random from the space of settings, and processors for which one machine can stand."""

import random
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from harness.catalog import MODELS
from harness.catalog.own import is_own, parse_own
from harness.errors import SettingError
from harness.records.data import DataKind
from harness.settings.resolve import check_fit, resolve

_LARGEST_BATCH = 96
_IMAGE_SIZES = (8, 16, 24, 32, 48, 64)
_SEQUENCE_LENGTHS = (16, 32, 48, 64, 96, 128, 200)
_LARGE_PRESETS = {"mlp": 256, "cnn": 16, "resnet": 4, "lstm": 4, "transformer": 4, "hf-vit": 2}
"""Models whose workstation size takes a few seconds per step on two cores, and the largest batch for that."""
_LARGE_SHARE = 0.15

_AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
_AVX512 = {
    "ATEN_CPU_CAPABILITY": "avx512",
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI",
    "MKL_ENABLE_INSTRUCTIONS": "AVX512",
}


class Processor(NamedTuple):
    """A processor for which this machine stands: the environment variables that limit the libraries to its
    instructions, and whether MKL takes the kernels that it has for Intel's."""

    name: str
    variables: Mapping[str, str]
    is_intel: bool = False

    def environ(self, threads: int, folder: Path) -> dict[str, str]:
        """The environment for a process with `threads` threads; `folder` takes a compiled library."""
        environ = {**self.variables, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
        if self.is_intel:
            environ["LD_PRELOAD"] = str(compile_library("intel_mkl", folder))
        return environ


PROCESSORS = (
    Processor("as it is", {}),
    Processor("AVX2", _AVX2),
    Processor("AVX-512 without bf16", _AVX512),
    Processor("AVX2, Intel's MKL", _AVX2, is_intel=True),
    Processor("AVX-512 without bf16, Intel's MKL", _AVX512, is_intel=True),
)


class Draw(NamedTuple):
    """One configuration: the settings that differ from the model's own, the processor and its threads."""

    values: Mapping[str, Any]
    processor: Processor
    threads: int

    @property
    def model(self) -> str:
        """The model of the catalog, or the name of the file of an own one."""
        own = parse_own(self.values["model"])
        return str(self.values["model"]) if own is None else own.file.stem

    @property
    def words(self) -> str:
        """The configuration in one line."""
        values = ", ".join(
            f"{name} {value}"
            for name, value in self.values.items()
            if name != "model" and not is_own(str(value))
        )
        return f"{self.model}: {values}; {self.processor.name}, {self.threads} thr."


def processors_here() -> Sequence[Processor]:
    """Those of PROCESSORS for which this machine can stand: it has their instructions."""
    capability = torch.backends.cpu.get_cpu_capability().lower()
    levels = {"avx2": {"avx2"}, "avx512": {"avx2", "avx512"}}.get(capability, set())
    return [one for one in PROCESSORS if not one.variables or one.variables["ATEN_CPU_CAPABILITY"] in levels]


def compile_library(name: str, folder: Path) -> Path:
    """Compile `name`.c of this folder into a shared library in `folder`, once. Raises CalledProcessError
    where there is no C compiler."""
    library = folder / f"{name}.so"
    if not library.exists():
        source = Path(__file__).with_name(f"{name}.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def draw(count: int, seed: int) -> list[Draw]:
    """`count` configurations that fit together, from `seed`. Models, processors and threads take turns, so
    that each has its share. The same for all machines with the same instructions."""
    source = random.Random(seed)
    models = deal(list(MODELS), count, source)
    places = [(processor, threads) for processor in processors_here() for threads in (1, 2)]
    return [
        Draw(_values(model, source), processor, threads)
        for model, (processor, threads) in zip(models, deal(places, count, source), strict=True)
    ]


def deal(items: Sequence[Any], count: int, source: random.Random) -> list[Any]:
    """`count` of the items, in a random order in each turn."""
    dealt: list[Any] = []
    while len(dealt) < count:
        dealt += source.sample(items, len(items))
    return dealt[:count]


def _values(model: str, source: random.Random) -> dict[str, Any]:
    """Settings at random for `model`; drawn again until they fit together."""
    while True:
        values = _candidate(model, source)
        try:
            check_fit(resolve(values))
        except SettingError:
            continue
        return values


def _candidate(model: str, source: random.Random) -> dict[str, Any]:
    spec = MODELS[model]
    is_large = model in _LARGE_PRESETS and source.random() < _LARGE_SHARE
    most = _LARGE_PRESETS[model] if is_large else _LARGEST_BATCH
    values: dict[str, Any] = {
        "model": model,
        "preset": "workstation" if is_large else "laptop",
        "batch_size": max(1, round(most ** source.random())),
        "amp": source.choice(("off", "bf16")),
        "grad_accumulation": source.choice((1, 1, 2, 3)),
        "optimizer": source.choice(("sgd", "adam", "adamw")),
        "optimizer_impl": source.choice(("auto", "loop", "foreach", "fused")),
        "set_to_none": source.random() < 0.8,
    }
    if source.random() < 0.3:
        values["data"] = "synthetic"
    if spec.can_checkpoint:
        values["activation_checkpointing"] = source.random() < 0.3
    if spec.can_channels_last:
        values["channels_last"] = source.random() < 0.5
    if spec.accepts is DataKind.IMAGE:
        if not is_large:
            values["image_size"] = source.choice(_IMAGE_SIZES)
        values["num_workers"] = 0
    else:
        lengths = _SEQUENCE_LENGTHS[:4] if is_large else _SEQUENCE_LENGTHS
        values["sequence_length"] = source.choice(lengths)
    return values
