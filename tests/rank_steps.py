"""Steps of ranks that average their gradients, so that all wait for the last one in the backward pass."""

from random import Random

from harness.records.run import StepRow
from tests.store_factories import a_step

MS = 1_000_000
BACKWARD_NS = 6 * MS
ALL_REDUCE_NS = MS // 2


def steps_of_ranks(
    size: int,
    steps: int = 100,
    *,
    has_waits: bool = False,
    backward_noise: float = 0.0,
    seed: int = 1,
    **late: object,
) -> dict[int, list[StepRow]]:
    """Steps of 10 ms with noise of 2 % in each phase. `late` has the `rank`, the `column`, the `by_ns` and
    the first step, `since`, of a rank that is late; all wait for the last one in the backward pass.
    `has_waits` is whether that is measured; `backward_noise` is a share of the backward pass."""
    random = Random(seed)
    rows: dict[int, list[StepRow]] = {rank: [] for rank in range(size)}
    clocks_ns = [rank * 7 * MS for rank in range(size)]
    for step in range(1, steps + 1):
        columns = []
        for rank in range(size):
            times = {"data_wait_ns": MS, "h2d_ns": 0, "forward_ns": 2 * MS, "optimizer_ns": MS}
            own = {name: int(ns * random.gauss(1, 0.02)) for name, ns in times.items()}
            own["backward_ns"] = BACKWARD_NS - ALL_REDUCE_NS
            if backward_noise:
                own["backward_ns"] = int(own["backward_ns"] * max(0.2, random.gauss(1, backward_noise)))
            if rank == late.get("rank") and step >= int(str(late.get("since", 1))):
                own[str(late["column"])] += int(str(late["by_ns"]))
            columns.append(own)
        slowest_ns = max(sum(own.values()) for own in columns)
        for rank, own in enumerate(columns):
            wait_ns = ALL_REDUCE_NS + slowest_ns - sum(own.values())
            step_ns = sum(own.values()) + wait_ns
            clocks_ns[rank] += step_ns
            own["backward_ns"] += wait_ns
            row = a_step(step)._replace(t_ns=clocks_ns[rank], flags=0, step_ns=step_ns, **own)
            if has_waits:
                row = row._replace(all_reduce_wait_ns=wait_ns, broadcast_wait_ns=0)
            rows[rank].append(row._replace(peak_allocated_bytes=(rank + 1) << 20))
    return rows
