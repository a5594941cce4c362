"""Memory rows of a simulated run: samples, memory by module, snapshots.

The model is `harness.models.transformer` in its largest preset, module by module, so that the rows are
consistent with the step rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.demo.machine import CONTEXT_BYTES, FACTS, Faults
from harness.records.memory import (
    AllocationRow,
    MemoryCategory,
    MemorySampleRow,
    ModuleMemoryRow,
    SnapshotReason,
    SnapshotRow,
)
from harness.records.run import AmpMode, StepRow
from harness.settings import Settings
from harness.store.inserts import MemoryRow

EVERY_NS = 2_000_000_000
# After the warm-up, as in a real run.
CENSUS_STEP = 8
TRACKED_STEPS = 6
_MIB = 2**20
_WIDTH, _LAYERS, _CONTEXT, _VOCABULARY = 768, 12, 1_024, 256
# Tensors that leak per step.
_LEAKED_BLOCKS_PER_STEP = 3

_LINEAR, _NORM = "Linear", "LayerNorm"
# Path, kind, parameters, and its share of saved activations, in tensors of the model's width.
_BLOCK_MODULES = (
    ("attention_norm", _NORM, 2 * _WIDTH, 1.0),
    ("attention.query", _LINEAR, _WIDTH * _WIDTH + _WIDTH, 1.0),
    ("attention.key_value", _LINEAR, 2 * _WIDTH * _WIDTH + 2 * _WIDTH, 2.0),
    ("attention", "Attention", 0, 2.0),
    ("attention.residual", _LINEAR, _WIDTH * _WIDTH + _WIDTH, 1.0),
    ("forward_norm", _NORM, 2 * _WIDTH, 1.0),
    ("feed_forward.widen", _LINEAR, 4 * _WIDTH * _WIDTH + 4 * _WIDTH, 1.0),
    ("feed_forward", "FeedForward", 0, 8.0),
    ("feed_forward.residual", _LINEAR, 4 * _WIDTH * _WIDTH + _WIDTH, 4.0),
)

# Snapshots of each scenario, at shares of its length.
_SNAPSHOTS: Mapping[str, Sequence[tuple[float, SnapshotReason]]] = {
    "leak": ((0.3, SnapshotReason.REQUESTED), (0.7, SnapshotReason.LEAK)),
    "fragmentation": ((0.2, SnapshotReason.REQUESTED), (0.9, SnapshotReason.REQUESTED)),
    "amp": ((0.2, SnapshotReason.REQUESTED), (0.6, SnapshotReason.REQUESTED)),
}


class _Module(NamedTuple):
    path: str
    kind: str
    parameters: int
    saved: float


def _modules() -> list[_Module]:
    blocks = [
        _Module(f"blocks.{at}.{path}", kind, parameters, saved)
        for at in range(_LAYERS)
        for path, kind, parameters, saved in _BLOCK_MODULES
    ]
    return [
        _Module("", "Transformer", 0, 0.0),
        _Module("embedding", "TokenEmbedding", 0, 1.0),
        _Module("embedding.tokens", "Embedding", _VOCABULARY * _WIDTH, 0.0),
        _Module("embedding.positions", "Embedding", _CONTEXT * _WIDTH, 0.0),
        *blocks,
        _Module("norm", _NORM, 2 * _WIDTH, 1.0),
        _Module("head", _LINEAR, 0, 2.0),  # Its weights are the embedding's, which counts them.
    ]


class SimulatedMemory:
    """Generates the memory rows of a run as its steps pass."""

    def __init__(self, key: str, steps: int, faults: Faults) -> None:
        self._faults = faults
        self._seq = 0
        self._snapshots = 0
        requested = {
            max(CENSUS_STEP + 1, round(at * steps)): reason for at, reason in _SNAPSHOTS.get(key, ())
        }
        self._due: Mapping[int, SnapshotReason] = {CENSUS_STEP: SnapshotReason.START, **requested}

    def rows(self, steps: Sequence[StepRow], settings: Settings) -> Iterator[MemoryRow]:
        """Yield the rows due by the end of `steps`, under `settings`."""
        for step in steps:
            if self._seq * EVERY_NS < step.t_ns:
                yield self._sample(step)
                self._seq = step.t_ns // EVERY_NS + 1
            if step.step in self._due:
                yield from self._snapshot(step, self._due[step.step], settings)

    def _sample(self, step: StepRow) -> MemorySampleRow:
        allocated, reserved = step.allocated_bytes or 0, step.reserved_bytes or 0
        split = min(step.inactive_split_bytes or 0, reserved - allocated)
        free = reserved - allocated - split
        return MemorySampleRow(
            seq=self._seq,
            t_ns=step.t_ns,
            step=step.step,
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            free_bytes=free,
            split_free_bytes=split,
            largest_free_bytes=max(int(free * 0.6), int(split * 0.02)),
            live_blocks=1_460 + self._leaked_blocks(step.step),
            segments=reserved // (20 * _MIB),
            process_bytes=reserved + CONTEXT_BYTES,
            used_bytes=reserved + CONTEXT_BYTES,
            total_bytes=FACTS.memory_bytes,
        )

    def _leaked_blocks(self, step: int) -> int:
        return _LEAKED_BLOCKS_PER_STEP * step if self._faults.leaked_bytes_a_step else 0

    def _snapshot(self, step: StepRow, reason: SnapshotReason, settings: Settings) -> Iterator[MemoryRow]:
        """Yield the rows of a snapshot, its own row last."""
        self._snapshots += 1
        tracked = 0 if reason is SnapshotReason.START else TRACKED_STEPS
        yield from self._census(settings, bool(tracked))
        allocations = list(self._allocations(step)) if tracked else []
        yield from allocations
        explained = sum(row.held_bytes for row in allocations) if tracked else None
        yield SnapshotRow(
            snapshot_id=self._snapshots,
            t_ns=step.t_ns,
            step=step.step,
            reason=reason,
            method="simulated: followed every allocation" if tracked else "simulated: counted the modules",
            tracked_steps=tracked,
            allocated_bytes=step.allocated_bytes,
            reserved_bytes=step.reserved_bytes,
            explained_bytes=explained,
            sites=len(allocations),
            took_ns=41_000_000 if tracked else 2_100_000,
            slowdown=1.34 if tracked else None,
            file=None,
            file_bytes=None,
            message="",
        )

    def _census(self, settings: Settings, tracked: bool) -> Iterator[ModuleMemoryRow]:
        modules = _modules()
        share = 0.62 if settings.amp is not AmpMode.OFF else 1.0
        saved = settings.batch_size * 560 * _MIB * share / sum(module.saved for module in modules)
        for module in modules:
            own = 4 * module.parameters
            yield ModuleMemoryRow(
                snapshot_id=self._snapshots,
                module=module.path,
                kind=module.kind,
                parameter_bytes=own,
                buffer_bytes=0,
                gradient_bytes=own,
                optimizer_bytes=2 * own,
                activation_bytes=int(module.saved * saved) if tracked else None,
            )

    def _allocations(self, step: StepRow) -> Iterator[AllocationRow]:
        """Yield rows by site, the largest first; their sum is allocated memory."""
        rows = [self._leak(step)] if self._faults.leaked_bytes_a_step else []
        lasting = {
            MemoryCategory.WEIGHTS: 1,
            MemoryCategory.GRADIENTS: 1,
            MemoryCategory.OPTIMIZER: 2,
        }
        parts: dict[str, list[int]] = {}
        for module in _modules():
            if module.parameters:
                owner = ".".join(module.path.split(".")[:2])
                parts.setdefault(owner, []).append(4 * module.parameters)
        for owner, sizes in parts.items():
            for category, times in lasting.items():
                site = owner if category is MemoryCategory.WEIGHTS else f"{owner} ({category})"
                size_bytes, blocks = times * sum(sizes), 2 * times * len(sizes)
                rows.append(self._row(category, owner, site, "", size_bytes, blocks))
        rest = (step.allocated_bytes or 0) - sum(row.held_bytes for row in rows)
        workspace = "harness/models/attention.py:31 forward"
        stack = f"{workspace}\nharness/train/loop.py:58 train"
        rows.append(self._row(MemoryCategory.TEMPORARIES, "head", workspace, stack, rest, 5))
        rows.sort(key=lambda row: row.held_bytes, reverse=True)
        return (row._replace(rank=rank) for rank, row in enumerate(rows, 1))

    def _leak(self, step: StepRow) -> AllocationRow:
        site = "train.py:88 train_step"
        stack = f"{site}\ntrain.py:41 train\ntrain.py:12 main"
        leaked = self._faults.leaked_bytes_a_step
        followed = TRACKED_STEPS - 2
        row = self._row(
            MemoryCategory.ACTIVATIONS,
            "head",
            site,
            stack,
            int(leaked * step.step),
            _LEAKED_BLOCKS_PER_STEP * step.step,
        )
        return row._replace(
            grown_bytes=int(leaked * followed), grown_blocks=_LEAKED_BLOCKS_PER_STEP * followed
        )

    def _row(
        self, category: MemoryCategory, module: str, site: str, stack: str, size_bytes: int, blocks: int
    ) -> AllocationRow:
        return AllocationRow(
            self._snapshots, 0, category, module, site, stack, max(0, size_bytes), blocks, 0, 0
        )
