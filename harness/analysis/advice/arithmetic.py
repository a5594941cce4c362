"""Rules on faster arithmetic, for runs that nothing else holds up on devices with tensor cores."""

import statistics

from harness import words
from harness.analysis.advice.known import Known
from harness.analysis.advice.suggestion import Finding, Gain, Option, Rule, at_most, pct
from harness.analysis.timing.phases import ClockTimes, Part
from harness.analysis.timing.verdict import COMPUTE_SHARE, Bound
from harness.catalog import MODELS
from harness.records import AmpMode, DataKind
from harness.setting import MatmulPrecision

# The compute capability from which on GPUs have tensor cores for float16 (Volta), and TF32 and bfloat16
# (Ampere): CUDA C++ Programming Guide, "Compute Capabilities".
TENSOR_CORES, TF32 = (7, 0), (8, 0)
# Percent of the time in which tensor cores work, above which they are not what is missing: a product that
# runs at its best keeps them busy for 70 to 80 %.
TENSORS_BUSY = 60.0
# Faster by so much with channels_last, over the models in PyTorch's own tutorial "Channels Last Memory
# Format", on a V100 with float16.
LAST_GAIN = (0.08, 0.35)
MULTIPLE = 8
# Tiles of eight that stay empty, as a share; below this a rounder batch gains less than 5 %.
PADDING_SHARE = 0.05


def find_tensor_cores(known: Known) -> Finding | None:
    """Compute-bound (at least 60 % of the time in forward and backward pass) in float32 or TF32, with tensor
    cores that work less than 60 % of the time where that is measured. By Amdahl's law a device whose peak is
    s times as high wins at most 1 - 1/s of these passes."""
    times, settings = _computing(known), known.settings
    if times is None or settings.amp is not AmpMode.OFF:
        return None
    busy = _tensor_active(known)
    if busy is not None and busy >= TENSORS_BUSY:
        return None
    share = times.share(Part.FORWARD) + times.share(Part.BACKWARD)
    has_tf32 = (known.device.capability or (0, 0)) >= TF32
    is_plain = settings.matmul_precision is MatmulPrecision.HIGHEST or not has_tf32
    amp = "bf16" if has_tf32 and AmpMode.BF16 in known.device.amp_modes else "fp16"
    options = [Option({"amp": amp}, _faster(known, "amp", amp, share))]
    if has_tf32 and is_plain:
        options.append(
            Option({"matmul_precision": "high"}, _faster(known, "matmul_precision", "high", share))
        )
    kind = "float32, without tensor cores" if is_plain else "TF32"
    details = [
        ("forward and backward pass", f"{pct(share)} of the device's time"),
        ("matrices are multiplied in", kind),
        ("tensor cores at work", words.percent(busy)),
    ]
    details += [
        (f"the device's peak with {name}={value}", f"{words.figure(ratio, 3)} times as high")
        for (name, value), ratio in known.speedups.items()
        if any(option.change.get(name) == value for option in options)
    ]
    at_work = "" if busy is None else f", and its tensor cores work {words.percent(busy)} of the time"
    return Finding(
        options[0].gain,
        f"{pct(share)} of the device's time goes into forward and backward pass, in {kind}{at_work}.",
        details,
        "Tensor cores multiply 16-bit numbers faster than any other, and 16-bit activations are read and "
        "written in half the time. Weights stay in float32; watch that the loss goes on falling as before.",
        options,
    )


def find_channels_last(known: Known) -> Finding | None:
    """A compute-bound network of convolutions that uses tensor cores on images stored as NCHW: cuDNN's tensor
    core kernels take NHWC and convert back and forth. The gain is what PyTorch's tutorial reports."""
    times, settings = _computing(known), known.settings
    if times is None or settings.channels_last:
        return None
    network = MODELS.get(settings.model)
    if network is None or not network.can_channels_last:
        return None
    has_tf32 = (known.device.capability or (0, 0)) >= TF32
    is_used = settings.amp is not AmpMode.OFF or (
        has_tf32 and settings.matmul_precision is not MatmulPrecision.HIGHEST
    )
    if not is_used:
        return None
    share = times.share(Part.FORWARD) + times.share(Part.BACKWARD)
    most = share * (1 - 1 / (1 + LAST_GAIN[1]))
    low, high = (pct(value) for value in LAST_GAIN)
    gain = Gain(
        most, f"at most {pct(most)} less time a sample, if passes get {low} to {high} faster as reported"
    )
    return Finding(
        gain,
        f"{pct(share)} of the device's time goes into the passes of a network of convolutions on tensor "
        "cores, with images stored as NCHW.",
        [
            ("forward and backward pass", f"{pct(share)} of the device's time"),
            ("channels_last", "off"),
            ("mixed precision", settings.amp.value),
        ],
        "Tensor cores take images as NHWC; stored otherwise they are converted before and after.",
        [Option({"channels_last": True}, gain)],
    )


def find_multiples(known: Known) -> Finding | None:
    """In 16 bits tensor cores take eight numbers at a time (NVIDIA, Matrix Multiplication Background User's
    Guide, "Tensor Core Requirements"); rows that do not fill the last eight are computed and thrown away.
    At least 5 % of them must be empty."""
    times, settings = _computing(known), known.settings
    network = MODELS.get(settings.model)
    if times is None or network is None or settings.amp is AmpMode.OFF:
        return None
    is_text = network.accepts is DataKind.TEXT
    rows = settings.batch_size * (settings.sequence_length if is_text else 1)
    padded = -(-rows // MULTIPLE) * MULTIPLE
    empty = 1 - rows / padded
    if empty < PADDING_SHARE:
        return None
    share = times.share(Part.FORWARD) + times.share(Part.BACKWARD)
    batch = -(-settings.batch_size // MULTIPLE) * MULTIPLE
    return Finding(
        at_most(share * empty),
        f"{words.plural(rows, 'row')} a batch fill {words.count(padded)} in tiles of eight: {pct(empty)} of "
        f"the arithmetic is thrown away, in {pct(share)} of the device's time.",
        [
            ("rows of a batch", words.count(rows)),
            ("rounded up to eights", words.count(padded)),
            ("forward and backward pass", f"{pct(share)} of the device's time"),
        ],
        "A batch that is a multiple of eight does more in the same time.",
        [Option({"batch_size": batch}, at_most(share * empty))],
        "Round the sizes of layers and vocabularies up to multiples of eight too.",
    )


def _computing(known: Known) -> ClockTimes | None:
    """The device's times, where it has tensor cores and the passes are what takes the time."""
    has_cores = known.is_gpu and (known.device.capability or (0, 0)) >= TENSOR_CORES
    return known.timing.device if has_cores and known.bound is Bound.COMPUTE else None


def _tensor_active(known: Known) -> float | None:
    seen = [row.tensor_active_pct for row in known.details if row.tensor_active_pct is not None]
    return statistics.fmean(seen) if seen else None


def _faster(known: Known, name: str, value: str, share: float) -> Gain:
    """Amdahl's bound. Under AMP numbers are half as long, so that what memory bounds can get twice as fast
    even where the peaks are closer to one another."""
    ratio = known.speedups.get((name, value))
    if ratio is None:
        return at_most(share)
    return at_most(share * (1 - 1 / max(ratio, 2.0 if name == "amp" else 1.0)))


RULES = (
    Rule(
        "tensor-cores",
        "Let the tensor cores do more",
        f"compute-bound (passes take at least {pct(COMPUTE_SHARE)} of the device's time) with AMP off, and "
        f"tensor cores at work less than {words.percent(TENSORS_BUSY)} of the time where that is measured",
        "Amdahl's law over the device's stated peaks (`harness/device/peaks.py`)",
        "phases on the device's clock, the settings, tensor activity (GPM)",
        "`amp` (bf16, else fp16), then `matmul_precision=high`",
        find_tensor_cores,
    ),
    Rule(
        "channels-last",
        "Store images as channels_last",
        "as above with tensor cores in use, a network of convolutions, and images stored as NCHW",
        'PyTorch tutorial "Channels Last Memory Format": 8 to 35 % faster on a V100',
        "phases on the device's clock, the settings",
        "`channels_last`",
        find_channels_last,
    ),
    Rule(
        "multiples-of-eight",
        "Round the batch up to a multiple of eight",
        f"compute-bound under AMP, and at least {pct(PADDING_SHARE)} of the rows in tiles of eight are empty",
        'NVIDIA Matrix Multiplication Background User\'s Guide, "Tensor Core Requirements"',
        "batch size (for text times sequence length), phases on the device's clock",
        "`batch_size`",
        find_multiples,
    ),
)
