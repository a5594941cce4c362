"""The sections of the report's page: Markdown lines from the results of one stage each."""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from harness import words
from tests.gpu.journal import StageResults

_WORST = 10
_BAND_PCT = 90


def cell(text: object) -> str:
    """Text for a cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def suite(result: StageResults) -> Iterator[str]:
    """Each test with its outcome and figures, those that did not pass first."""
    outcomes = [row["outcome"] for row in result.values.values()]
    passed, skipped = outcomes.count("passed"), outcomes.count("skipped")
    failed = len(outcomes) - passed - skipped + len(result.failures)
    yield f"{passed} passed, {failed} failed, {skipped} skipped."
    yield from ("", "| test | outcome | measured |", "|---|---|---|")
    rows = sorted(result.values.items(), key=lambda row: row[1]["outcome"] == "passed")
    for name, row in rows:
        figures = "; ".join(f"{what}: {value}" for what, value in row["figures"])
        measured = " ".join(filter(None, [row["reason"], figures]))
        yield f"| {cell(name.removeprefix('tests/'))} | {row['outcome']} | {cell(measured)} |"


def overflow(result: StageResults) -> Iterator[str]:
    """Both sequences."""
    yield "60,000 small allocations followed, switched to the state alone, 200,000 more, a snapshot:"
    yield ""
    for sequence, row in result.values.items():
        counts = row.get("counts")
        observed = "" if counts is None else f"; {', '.join(f'{name}: {n:,}' for name, n in counts.items())}"
        verdict = "survives" if row["ok"] else "**does not survive**"
        yield f"- ring {sequence} in between: {verdict} ({row['end']}{observed})"


def refcount(result: StageResults) -> Iterator[str]:
    """The difference, or why there is none to count."""
    for row in result.values.values():
        if row["is_immortal"]:
            yield "n/a: from Python 3.12 on `False` is immortal, its references are not counted (PEP 683)."
        else:
            gained = row["after"] - row["before"]
            yield (
                f"`sys.getrefcount(False)` went from {row['before']:,} to {row['after']:,} over "
                f"{row['calls']:,} calls of memory_snapshot with {row['blocks']:,} blocks: "
                f"{gained / row['calls']:+.2f} per call."
            )


def texts(result: StageResults) -> Iterator[str]:
    """Each text as it came, with what is read from it."""
    for item, row in result.values.items():
        if item == "container":
            yield f"Signs of a container: {'; '.join(row) or 'none'}."
            continue
        yield from ("", f"### {item}")
        for case in row:
            yield ""
            if "problem" in case:
                yield f"n/a: {case['problem']}"
            elif case["text"] is None:
                yield f"{case['case']}: n/a, no error was raised."
            else:
                yield from (f"{case['case']}:", "", "```", f"{case['class']}: {case['text']}", "```", "")
                yield _reading(case)


def _reading(row: Mapping[str, Any]) -> str:
    if row["is_out_of_memory"]:
        verdict = "recognized as out of memory"
    elif row["is_ambiguous"]:
        verdict = (
            f"ambiguous; the allocator's counters {'say' if row['allocator_failed'] else 'do not say'} so"
        )
    else:
        verdict = "**not recognized**"
    sizes = "; ".join(
        f"{name.removesuffix('_bytes')} {words.size(size)}"
        for name, size in row["numbers"].items()
        if size is not None
    )
    reserved = words.size(row["reserved_bytes"])
    return f"{verdict}; read: {sizes or 'nothing'}; reserved when it failed: {reserved}."


def phases(result: StageResults) -> Iterator[str]:
    """Clock over profiler."""
    yield "Time by CUDA's events over that of the profiler: of whole steps its kernels' span, of phases the"
    yield "time of their kernels (above 1: time without a kernel)."
    yield ""
    yield from (
        "| case | step | whole step | forward | backward | optimizer |",
        "|---|---:|---:|---:|---:|---:|",
    )
    for item, row in result.values.items():
        ratios = [_number(row.get(name), ".4f") for name in ("step", "forward", "backward", "optimizer")]
        yield f"| {cell(item)} | {row['step_ms']:.3g} ms | {' | '.join(ratios)} |"


def _number(value: float | None, form: str) -> str:
    return "n/a" if value is None or math.isnan(value) else format(value, form)


def prediction(result: StageResults) -> Iterator[str]:
    """Mean error, band and the worst."""
    rows = {item: row for item, row in result.values.items() if "measured_bytes" in row}
    left_out = {item: row["left_out"] for item, row in result.values.items() if "left_out" in row}
    if rows:
        errors = {item: _error_pct(row, "") for item, row in rows.items()}
        mean_pct, bias_pct = statistics.fmean(map(abs, errors.values())), statistics.fmean(errors.values())
        yield (
            f"{len(rows)} configurations: mean absolute error of the allocated peak {mean_pct:.1f} % "
            f"(mean {bias_pct:+.1f} %); {band(errors.values())}"
        )
        yield from ("", f"The {min(_WORST, len(rows))} worst:", "")
        yield from (
            "| configuration | measured | predicted | error, % | error of reserved, % |",
            "|---|---:|---:|---:|---:|",
        )
        for item in sorted(errors, key=lambda item: -abs(errors[item]))[:_WORST]:
            row = rows[item]
            sizes = f"{words.size(row['measured_bytes'])} | {words.size(row['predicted_bytes'])}"
            reserved = _number(_reserved_pct(row), "+.1f")
            yield f"| {cell(item)} | {sizes} | {errors[item]:+.1f} | {reserved} |"
    if left_out:
        yield from ("", f"{len(left_out)} of those drawn were left out:", "")
        yield from (f"- {item}: {reason}" for item, reason in left_out.items())


def band(errors_pct: Iterable[float]) -> str:
    """The middle nine tenths of the errors, in words."""
    errors = sorted(errors_pct)
    cut = round(len(errors) * (100 - _BAND_PCT) / 200)
    inner = errors[cut : len(errors) - cut]
    return f"{len(inner)} of {len(errors)} between {inner[0]:+.1f} and {inner[-1]:+.1f} %."


def _error_pct(row: Mapping[str, Any], kind: str) -> float:
    return 100 * (float(row[f"predicted_{kind}bytes"]) / float(row[f"measured_{kind}bytes"]) - 1)


def _reserved_pct(row: Mapping[str, Any]) -> float | None:
    if row["predicted_reserved_bytes"] is None or not row["measured_reserved_bytes"]:
        return None
    return _error_pct(row, "reserved_")


def events(result: StageResults) -> Iterator[str]:
    """Overhead by the length of a step."""
    yield from (
        "| step | observing adds (quartiles) | to a bare issue time of | of the step |",
        "|---|---:|---:|---:|",
    )
    marks = []
    for item, row in result.values.items():
        if "per_mark_us" in row:
            per_mark = f"{row['per_mark_us']:.1f} µs with it looked up per mark."
            if "own_us" in row:
                per_mark = f"{row['per_mark_us']:.1f} µs with an object of the stream per mark."
                marks.append(f"Six marks of the event clock take {row['own_us']:.1f} µs, {per_mark}")
                continue
            marks.append(
                f"Six marks of the event clock take {row['per_step_us']:.1f} µs with the stream looked up "
                f"per step, {per_mark}"
            )
            continue
        if "launch_us" in row:
            parts = ("an event", "event_us"), ("the copy of a loss", "loss_us"), ("a reading", "memory_us")
            times = ", ".join(f"{what} {row[name]:.1f} µs" for what, name in parts)
            marks.append(f"While the GPU is at work: a small kernel {row['launch_us']:.1f} µs, {times}.")
            continue
        share_pct = 100 * row["median_us"] / (1e3 * float(item.partition(" ")[0]))
        yield (
            f"| {item} | {row['median_us']:.1f} µs ({row['low_us']:.1f} to {row['high_us']:.1f}) | "
            f"{row['bare_us']:.1f} µs | {share_pct:.3f} % |"
        )
    yield ""
    yield from marks


def lists(result: StageResults) -> Iterator[str]:
    """Times by the number of blocks."""
    yield "Another thread's longest pause, without and with readings beside it:"
    yield from ("", "| live blocks | one reading | pause without | pause with |", "|---:|---:|---:|---:|")
    for row in result.values.values():
        times = [f"{row[name]:.2f} ms" for name in ("read_ms", "pause_without_ms", "pause_with_ms")]
        yield f"| {row['blocks']:,} | {' | '.join(times)} |"


def nvml(result: StageResults) -> Iterator[str]:
    """Each field: its value, or why there is none; then the time of each query."""
    for item, row in result.values.items():
        if all(isinstance(value, float) for value in row.values()):
            slowest = sorted(row.items(), key=lambda pair: -pair[1])
            yield from ("", f"{item}: {', '.join(f'{name} {ms:.3f} ms' for name, ms in slowest)}.")
            continue
        names = {name: message["value"] for name, message in row.items() if "value" in message}
        missing = {name: message["reason"] for name, message in row.items() if "reason" in message}
        yield f"{len(names)} fields are reported, {len(missing)} are not."
        yield from ("", "| field | value |", "|---|---|")
        yield from (f"| {name} | n/a: {cell(reason)} |" for name, reason in missing.items())
        yield from (f"| {name} | {cell(value)[:200]} |" for name, value in names.items())


def comparisons(result: StageResults) -> Iterator[str]:
    """Each variant of each preset, with its spread."""
    yield from (
        "| preset | variant | warm-up | step | throughput (range) | peak | peak over the default's |",
    )
    yield "|---|---|---:|---:|---:|---:|---:|"
    for model, row in result.values.items():
        if "problem" in row:
            yield f"| {model} | n/a: {cell(row['problem'])} | | | | | |"
            continue
        head = f"{model}, batch {row['batch_size']}, {row['rounds']} rounds"
        for name, variant in row["variants"].items():
            yield f"| {head} | {_variant(name, variant, row['warm_up_s'].get(name))} |"


def _variant(name: str, row: Mapping[str, Any], warm_up_s: float | None) -> str:
    if "refused" in row:
        return f"{name}: n/a, {cell(row['refused'])} | | | | |"
    speed = f"{row['speed']:.3f} × ({row['speed_low']:.3f} to {row['speed_high']:.3f})"
    peak = words.size(round(row["peak_bytes"]))
    warm_up = words.span(warm_up_s)
    return (
        f"{name} | {warm_up} | {row['step_ms']:.4g} ms | {speed} | {peak} | {_number(row['memory'], '.3f')} ×"
    )


def recordings(result: StageResults) -> Iterator[str]:
    """Each recording."""
    sizes = [row["file_bytes"] for row in result.values.values() if "file" in row]
    yield f"{len(sizes)} recordings, {words.size(sum(sizes))} together."
    yield from ("", "| run | state | steps | median step | file |", "|---|---|---:|---:|---|")
    for item, row in result.values.items():
        if "state" not in row:
            yield f"| {item} | n/a: {cell(row['problem'])} | | | |"
            continue
        step = "n/a" if row["step_ms"] is None else f"{row['step_ms']:.3g} ms"
        file = f"{row['file']}, {words.size(row['file_bytes'])}" if "file" in row else row["problem"]
        yield f"| {item} | {row['state']} | {row['steps']:,} | {step} | {file} |"
