"""The table for the README: what each setting is worth on the h200 presets."""

from collections.abc import Mapping
from typing import Any

from harness import words
from tests.gpu.journal import Results

COLUMNS = (
    ("worth", "AMP bf16", "AMP bf16"),
    ("worth", "AMP fp16", "AMP fp16"),
    ("worth", "TF32", "TF32"),
    ("worth", "channels_last", "channels_last"),
    ("worth", "channels_last + AMP bf16", "channels_last + bf16"),
    ("transfers", "pinned", "pinned"),
    ("transfers", "pinned + non_blocking", "pinned + non_blocking"),
    ("compile", "compile", "compile"),
    ("compile", "compile + AMP bf16", "compile + bf16"),
)
"""The stage, its variant, and the column's head."""


def worth_table(results: Results) -> list[str]:
    """Markdown lines; empty when no comparison was made."""
    stages = {key: results.stage(key).values for key in ("worth", "transfers", "compile")}
    models = list(dict.fromkeys(model for values in stages.values() for model in values))
    rows = [_row(model, stages) for model in models]
    if not any(rows):
        return []
    card = results.sessions[0]["card"] if results.sessions else "n/a"
    torch = results.sessions[-1]["torch"] if results.sessions else "n/a"
    heads = " | ".join(head for *_, head in COLUMNS)
    return [
        "Throughput over the default's and (in parentheses) peak memory over the default's, on the h200 "
        f"presets: {card}, torch {torch}, medians of blocks in turns in one process; `make gpu-check`. "
        "The default is float32 without TF32, eager. Pinned memory and non-blocking copies are held against "
        "a default whose batches lie in the host's memory, the others against one whose batches lie on the "
        "GPU.",
        "",
        f"| h200 preset | step, peak | {heads} |",
        f"|---|---:|{'---:|' * len(COLUMNS)}",
        *filter(None, rows),
    ]


def _row(model: str, stages: Mapping[str, Mapping[str, Any]]) -> str:
    """The model's row; empty when nothing could be measured of it."""
    measured = {key: values.get(model, {}) for key, values in stages.items()}
    first = next((result for result in measured.values() if "variants" in result), None)
    if first is None:
        return ""
    default = first["variants"]["default"]
    size = words.size(round(default["peak_bytes"]))
    cells = [_cell(measured[stage], variant) for stage, variant, _ in COLUMNS]
    name = model + _batch_note(first)
    return f"| {name} | {default['step_ms']:.3g} ms, {size} | {' | '.join(cells)} |"


def _batch_note(result: Mapping[str, Any]) -> str:
    if result["batch_size"] == result["preset_batch_size"]:
        return ""
    return f" (batch {result['batch_size']} of {result['preset_batch_size']})"


def _cell(result: Mapping[str, Any], variant: str) -> str:
    """`2.41 × (0.62 ×)`; n/a where the device or model refused, empty where it does not apply."""
    row = result.get("variants", {}).get(variant)
    if row is None:
        return "" if result else "n/a"
    if "refused" in row:
        return "n/a"
    return f"{row['speed']:.2f} × ({row['memory']:.2f} ×)"
