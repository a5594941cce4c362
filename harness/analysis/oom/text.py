"""An out-of-memory report as plain text, at most 60 lines of 100 characters, for pasting into an issue."""

import textwrap
from collections.abc import Iterable

from harness import words
from harness.analysis.oom.budget import budget
from harness.analysis.oom.report import OomFacts, OomReport
from harness.records.run import DeviceKind

LINES, WIDTH = 60, 100
# Number of entries shown of each list; the JSON contains all.
_STACK, _MOST_CATEGORIES, _SITES, _STEPS = 5, 8, 5, 8


def render(report: OomReport) -> str:
    """Return the text of the report, without a final newline."""
    facts = report.facts
    lines = [
        f"{report.headline} on {facts.device_name}: {report.verdict.value}",
        "",
        *_wrapped(report.why, indent=0),
        *(_wrapped(report.outcome, indent=0) if report.outcome else ()),
        "",
        *_request(report),
        *_memory(report),
        *_listed("Evidence", report.evidence),
        *_listed("Effect of other settings", (f"{c.text} ({c.basis})" for c in report.counterfactuals)),
        *_live(report),
        *_steps(facts),
    ]
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], "… (complete with --json)"]
    return "\n".join(line.rstrip() for line in lines)


def _request(report: OomReport) -> list[str]:
    facts, request = report.facts, report.facts.request
    size = words.size(request.most_bytes)
    if request.most_bytes != request.least_bytes:
        size = (
            f"{words.size(request.least_bytes)} to {size} (in the error: {words.size(request.error_bytes)})"
        )
    module, script_site = words.NOT_AVAILABLE, request.script_site
    if request.module is not None:
        module = f"{request.module or 'the model itself'} ({request.module_kind})"
    return [
        f"Request     {size}",
        f"Phase       {request.phase.value}",
        f"Module      {module}",
        f"Line        {request.site or words.NOT_AVAILABLE}",
        *((f"            {request.code}",) if request.code else ()),
        *(f"            from {frame}" for frame in request.stack[1:_STACK]),
        *(
            (f"            … from {script_site}",)
            if script_site not in (None, *request.stack[:_STACK])
            else ()
        ),
        f"Settings    {facts.settings_text or words.NOT_AVAILABLE}",
        *(_wrapped(request.note) if request.note else ()),
        *_wrapped(f"Error       {facts.error}", lines=3),
    ]


def _memory(report: OomReport) -> list[str]:
    memory, device = report.facts.memory, report.facts.device
    parts = budget(report.facts)
    lines = []
    if parts:
        lines.append(f"Limit       {words.size(memory.limit_bytes)} ({memory.limit_name}), of which")
        lines += [f"  {_signed(part.size_bytes):>10}  {part.name}" for part in parts]
    figures = [
        ("allocated", memory.allocated_bytes if not parts else None),
        ("reserved", memory.reserved_bytes if device is not DeviceKind.CPU else None),
        ("largest free block", memory.largest_free_bytes),
    ]
    if memory.is_capped or memory.is_limited or not parts:
        machine = "the machine" if device is DeviceKind.CPU else "the device"
        figures += [
            (f"free on {machine}", memory.device_free_bytes),
            ("used by other processes", memory.others_bytes),
        ]
    texts = [f"{name} {words.size(value)}" for name, value in figures if value is not None]
    return lines + (_wrapped("Also        " + ", ".join(texts)) if texts else [])


def _signed(size_bytes: int) -> str:
    return words.size(size_bytes) if size_bytes >= 0 else f"−{words.size(-size_bytes)}"


def _listed(title: str, items: Iterable[str]) -> list[str]:
    lines = [line for item in items for line in _wrapped(f"- {item}", indent=2)]
    return ["", f"{title}:", *lines] if lines else []


def _live(report: OomReport) -> list[str]:
    facts = report.facts
    lines = [*_holders(facts), *_sites(facts)]
    variables = [
        f"  {words.size(v.held_bytes):>10}  {v.name} in {v.site}, {words.plural(v.blocks, 'object')}"
        f"{'' if v.is_complete else ' and more'}"
        f"{f', {words.size(v.saved_bytes)} by autograd' if v.saved_bytes else ''}"
        for v in facts.variables
    ]
    return [
        *(["", "Largest live allocations:", *lines] if lines else []),
        *(["", "Largest variables of the script, part of the above:", *variables] if variables else []),
    ]


def _holders(facts: OomFacts) -> list[str]:
    """Return the kinds of memory; their sizes add up. Below each are its modules, with their sizes in
    another column."""
    largest = facts.holders[:_MOST_CATEGORIES]
    lines = []
    for one in largest:
        if facts.is_part(one):
            continue
        module = "" if one.module is None else f", {one.module}"
        lines.append(f"  {words.size(one.held_bytes):>10}  {one.category}{module}")
        lines += [
            f"  {'of it':>10}  {words.size(part.held_bytes)} in {part.module}"
            for part in largest
            if one.module is None and part.category == one.category and facts.is_part(part)
        ]
    return lines


def _sites(facts: OomFacts) -> list[str]:
    of_these = [(words.size(s.held_bytes), s) for s in facts.sites[:_SITES]]
    if facts.holders:
        return [
            f"  {'of these':>10}  {size} in {words.plural(s.blocks, 'tensor')} allocated at {s.site}"
            for size, s in of_these
        ]
    return [f"  {size:>10}  {words.plural(s.blocks, 'tensor')} allocated at {s.site}" for size, s in of_these]


def _steps(facts: OomFacts) -> list[str]:
    steps, reserved = facts.steps, "RSS" if facts.device is DeviceKind.CPU else "reserved"
    if not steps:
        return []
    rows = [
        f"{words.count(s.step):>12}{words.milliseconds(s.step_ns):>12}{words.size(s.allocated_bytes):>12}"
        f"{words.size(s.peak_bytes):>12}{words.size(s.reserved_bytes):>12}"
        for s in steps[-_STEPS:]
    ]
    head = f"{'step':>12}{'time':>12}{'allocated':>12}{'peak':>12}{reserved:>12}"
    return ["", f"Recent steps (the last {len(rows)} of {len(steps)}):", head, *rows]


def _wrapped(text: str, indent: int = 12, lines: int = 6) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=" " * indent, max_lines=lines, placeholder=" …")
