"""Rules on faster arithmetic, for compute-bound runs on devices with tensor cores."""

import statistics

from harness import words
from harness.analysis.advice.evidence import RunEvidence
from harness.analysis.advice.suggestion import Diagnosis, Gain, Option, Rule, at_most, pct
from harness.analysis.timing.phases import ClockTimes, StepPart
from harness.analysis.timing.verdict import COMPUTE_SHARE, Bound
from harness.catalog import MODELS
from harness.records.data import DataKind
from harness.records.run import AmpMode
from harness.settings.declaration import MatmulPrecision

# Compute capability that introduced tensor cores for float16 (Volta), and for TF32 and bfloat16 (Ampere):
# CUDA C++ Programming Guide, "Compute Capabilities".
TENSOR_CORES, TF32 = (7, 0), (8, 0)
# Tensor core activity in percent above which they are not the bottleneck: an efficient matrix multiplication
# keeps them busy for 70 to 80 %.
TENSORS_BUSY_PCT = 60.0
# Lowest and highest speedup by channels_last, less one, over the models in the PyTorch tutorial "Channels
# Last Memory Format", on a V100 with float16.
CHANNELS_LAST_GAIN = (0.08, 0.35)
MULTIPLE = 8
# Share of padding in tiles of eight; below it a rounded batch gains less than 5 %.
PADDING_SHARE = 0.05


def find_tensor_cores(run: RunEvidence) -> Diagnosis | None:
    """Compute-bound (at least 60 % of the time in the forward and backward pass) in float32 or TF32, with
    tensor core activity below 60 % where it is measured. By Amdahl's law a peak that is s times as high saves
    at most the share 1 - 1/s of these passes."""
    times, settings = _computing(run), run.settings
    if times is None or run.value("amp") is not AmpMode.OFF:
        return None
    busy = _tensor_active(run)
    if busy is not None and busy >= TENSORS_BUSY_PCT:
        return None
    share = times.share(StepPart.FORWARD) + times.share(StepPart.BACKWARD)
    has_tf32 = (run.device.capability or (0, 0)) >= TF32
    is_plain = settings.matmul_precision is MatmulPrecision.HIGHEST or not has_tf32
    amp = "bf16" if has_tf32 and AmpMode.BF16 in run.device.amp_modes else "fp16"
    options = [Option({"amp": amp}, _faster(run, "amp", amp, share))]
    if has_tf32 and is_plain:
        options.append(Option({"matmul_precision": "high"}, _faster(run, "matmul_precision", "high", share)))
    kind = "float32, without tensor cores" if is_plain else "TF32"
    details = [
        ("forward and backward pass", f"{pct(share)} of the device's time"),
        ("matrix multiplication in", kind),
        ("tensor core activity", words.percent(busy)),
    ]
    details += [
        (f"device peak with {name}={value}", f"{words.figure(ratio, 3)} times as high")
        for (name, value), ratio in run.speedups.items()
        if any(option.change.get(name) == value for option in options)
    ]
    activity = "" if busy is None else f", and its tensor cores are active {words.percent(busy)} of the time"
    return Diagnosis(
        options[0].gain,
        f"{pct(share)} of the device's time is spent in the forward and backward pass, in {kind}{activity}.",
        details,
        "Tensor cores have their highest throughput in 16-bit types, and 16-bit activations take half the "
        "memory bandwidth. Weights stay in float32; check that the loss keeps falling as before.",
        options,
    )


def find_channels_last(run: RunEvidence) -> Diagnosis | None:
    """A compute-bound convolutional network that uses tensor cores on images stored as NCHW: cuDNN's tensor
    core kernels use NHWC and convert back and forth. The gain is the one reported in PyTorch's tutorial."""
    times, settings = _computing(run), run.settings
    if times is None or settings.channels_last:
        return None
    network = MODELS.get(run.value("model") or "")
    if network is None or not network.can_channels_last:
        return None
    has_tf32 = (run.device.capability or (0, 0)) >= TF32
    is_used = settings.amp is not AmpMode.OFF or (
        has_tf32 and settings.matmul_precision is not MatmulPrecision.HIGHEST
    )
    if not is_used:
        return None
    share = times.share(StepPart.FORWARD) + times.share(StepPart.BACKWARD)
    limit = share * (1 - 1 / (1 + CHANNELS_LAST_GAIN[1]))
    low, high = (pct(value) for value in CHANNELS_LAST_GAIN)
    gain = Gain(
        limit, f"at most {pct(limit)} less time per sample, if passes get {low} to {high} faster as reported"
    )
    return Diagnosis(
        gain,
        f"{pct(share)} of the device's time is spent in the passes of a convolutional network on tensor "
        "cores, with images stored as NCHW.",
        [
            ("forward and backward pass", f"{pct(share)} of the device's time"),
            ("channels_last", "off"),
            ("mixed precision", settings.amp.value),
        ],
        "Tensor core kernels use NHWC; other layouts are converted before and after each of them.",
        [Option({"channels_last": True}, gain)],
    )


def find_multiples(run: RunEvidence) -> Diagnosis | None:
    """In 16-bit types tensor cores process eight numbers at a time (NVIDIA, Matrix Multiplication Background
    User's Guide, "Tensor Core Requirements"); the last, incomplete eight is padded. At least 5 % of the rows
    must be padding."""
    times, settings = _computing(run), run.settings
    network = MODELS.get(run.value("model") or "")
    if times is None or network is None or settings.amp is AmpMode.OFF:
        return None
    is_text = network.accepts is DataKind.TEXT
    rows = settings.batch_size * (settings.sequence_length if is_text else 1)
    padded = -(-rows // MULTIPLE) * MULTIPLE
    padding = 1 - rows / padded
    if padding < PADDING_SHARE:
        return None
    share = times.share(StepPart.FORWARD) + times.share(StepPart.BACKWARD)
    batch = -(-settings.batch_size // MULTIPLE) * MULTIPLE
    return Diagnosis(
        at_most(share * padding),
        f"{words.plural(rows, 'row')} per batch fill {words.count(padded)} in tiles of eight: {pct(padding)} "
        f"of the arithmetic is padding, in {pct(share)} of the device's time.",
        [
            ("rows per batch", words.count(rows)),
            ("rounded up to a multiple of eight", words.count(padded)),
            ("forward and backward pass", f"{pct(share)} of the device's time"),
        ],
        "A batch that is a multiple of eight processes more samples in the same time.",
        [Option({"batch_size": batch}, at_most(share * padding))],
        "Round the sizes of layers and vocabularies up to multiples of eight too.",
    )


def _computing(run: RunEvidence) -> ClockTimes | None:
    """The device's times of a compute-bound run with tensor cores, else None."""
    has_cores = run.is_gpu and (run.device.capability or (0, 0)) >= TENSOR_CORES
    return run.timing.device if has_cores and run.bound is Bound.COMPUTE else None


def _tensor_active(run: RunEvidence) -> float | None:
    values = [row.tensor_active_pct for row in run.details if row.tensor_active_pct is not None]
    return statistics.fmean(values) if values else None


def _faster(run: RunEvidence, name: str, value: str, share: float) -> Gain:
    """Amdahl's bound. AMP halves the size of numbers, so memory-bound kernels can get twice as fast even
    where the ratio of the peaks is smaller."""
    ratio = run.speedups.get((name, value))
    if ratio is None:
        return at_most(share)
    return at_most(share * (1 - 1 / max(ratio, 2.0 if name == "amp" else 1.0)))


RULES = (
    Rule(
        "tensor-cores",
        "Use the tensor cores",
        f"compute-bound (passes take at least {pct(COMPUTE_SHARE)} of the device's time) with AMP off, and "
        f"tensor core activity below {words.percent(TENSORS_BUSY_PCT)} where it is measured",
        "Amdahl's law over the device's stated peaks (`harness/device/peaks.py`)",
        "phases on the device's clock, the settings, tensor activity (GPM)",
        "`amp` (bf16, else fp16), then `matmul_precision=high`",
        find_tensor_cores,
    ),
    Rule(
        "channels-last",
        "Store images as channels_last",
        "as above with tensor cores in use, a convolutional network, and images stored as NCHW",
        'PyTorch tutorial "Channels Last Memory Format": 8 to 35 % faster on a V100',
        "phases on the device's clock, the settings",
        "`channels_last`",
        find_channels_last,
    ),
    Rule(
        "multiples-of-eight",
        "Round the batch up to a multiple of eight",
        f"compute-bound under AMP, and at least {pct(PADDING_SHARE)} of the rows are padding in tiles of "
        "eight",
        'NVIDIA Matrix Multiplication Background User\'s Guide, "Tensor Core Requirements"',
        "batch size (for text times sequence length), phases on the device's clock",
        "`batch_size`",
        find_multiples,
    ),
)
