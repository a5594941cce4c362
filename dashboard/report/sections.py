"""The sections of one run's report, as HTML."""

from collections.abc import Sequence

from dashboard.charts import waterfall as waterfall_chart
from dashboard.report.markup import facts, lines, paragraph, section, table
from harness import words
from harness.records.memory import LeakVerdict
from harness.settings.spec import text_of_value
from harness.supervisor.origin import environment_text, origin_facts
from harness.supervisor.reporting import ChangeReport, ReportFacts
from harness.supervisor.summary import pace_facts


def run_facts(report: ReportFacts) -> str:
    """Return the figures and the identity of a run."""
    run = report.summary
    device = words.NOT_AVAILABLE if run.device is None else f"{run.device.torch_name}, {run.device.name}"
    rows = [
        ("device", device),
        ("trains", run.subject or words.NOT_AVAILABLE),
        ("parameters", words.count(run.parameters)),
        ("steps", words.count(run.steps)),
        *pace_facts(run),
        ("peak allocated", words.size(run.peak_allocated_bytes)),
        ("peak reserved", words.size(run.peak_reserved_bytes)),
        ("loss", words.figure(run.loss)),
        ("started", words.moment(run.started_unix_ns)),
        ("ended", words.moment(run.ended_unix_ns)),
    ]
    return facts(rows)


def memory(report: ReportFacts) -> str:
    """Return the breakdown of the newest memory sample."""
    if report.facts.memory is None:
        return section("Memory breakdown", paragraph("n/a: no memory sample was recorded.", "muted"))
    whole = "host memory" if report.is_cpu else "GPU memory"
    return section("Memory breakdown", waterfall_chart.html(report.facts.memory, whole))


def verdicts(report: ReportFacts) -> str:
    """Return the newest out-of-memory report, and the verdicts on leaks."""
    if report.oom_text is None:
        oom = paragraph("Memory did not run out in a recorded step.", "muted")
    else:
        more = paragraph(f"The last of {report.ooms} reports.", "muted") if report.ooms > 1 else ""
        oom = lines(report.oom_text) + more
    leaks = [row for row in report.leaks if row.verdict in (LeakVerdict.LEAK, LeakVerdict.WATCH)]
    if leaks:
        has_cause = any(row.cause for row in leaks)
        headings = ("Series", "Verdict", "Evidence", *(["Usual cause"] if has_cause else []))
        grown = table(
            headings,
            [(row.series, row.verdict, row.message, row.cause or "")[: len(headings)] for row in leaks],
        )
    elif report.leaks:
        grown = "".join(paragraph(row.message) for row in report.leaks)
    else:
        grown = paragraph("n/a: there is no verdict on leaks.", "muted")
    return section("Out of memory", oom) + section("Leaks", grown)


def effects(report: ReportFacts) -> str:
    """Return the changes of settings with their observed changes, and the measured effects."""
    if not report.changes and not report.measured:
        return section("Effects of changes", paragraph("No setting was changed.", "muted"))
    observed, measured = _effect_rows("Observed", report.changes), _effect_rows("Measured", report.measured)
    return section("Effects of changes", observed, measured)


def _effect_rows(kind: str, changes: Sequence[ChangeReport]) -> str:
    rows = [(words.count(change.step), change.title, change.verdict) for change in changes]
    return table(("Step>", "Change", kind), rows) if rows else ""


def operators(report: ReportFacts) -> str:
    """Return the longest operators or kernels of the newest profile."""
    profile = report.profile
    if profile is None:
        return section("Operators", paragraph("n/a: no profile was taken.", "muted"))
    rows = [
        (
            part.name,
            words.fine_duration(part.time_ns / profile.steps),
            words.percent(None if part.share is None else 100 * part.share),
            words.count(part.calls),
        )
        for part in report.operators
    ]
    span = f"Profile of {words.plural(profile.steps, 'step')} from step {words.count(profile.first_step)}."
    noun = "Kernel" if profile.on_device else "Operator"
    headings = (noun, "Time per step>", "Share>", "Calls>")
    return section("Operators", paragraph(f"{span} {profile.message}"), table(headings, rows))


def events(report: ReportFacts) -> str:
    """Return the newest events."""
    rows = [(words.count(event.step), event.label, event.message) for event in report.events]
    return section("Events", table(("Step>", "Event", ""), rows)) if rows else ""


def environment(report: ReportFacts) -> str:
    """Return versions, the command of a script, and the settings."""
    run = report.summary
    rows = [("environment", environment_text(run.versions)), ("run id", run.run_id)]
    if run.script is not None:
        rows += origin_facts(run.script)
    settings = [(name, text_of_value(name, value)) for name, value in report.facts.settings.items()]
    body = facts(settings) if settings else paragraph("n/a: none were recorded.", "muted")
    return section("Environment", facts(rows)) + section("Settings", body)


def of_run(report: ReportFacts) -> Sequence[str]:
    """Return all sections of a run under its charts, in order."""
    return (
        memory(report),
        verdicts(report),
        effects(report),
        operators(report),
        events(report),
        environment(report),
    )
