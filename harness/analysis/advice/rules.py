"""All rules, and their suggestions in order of gain."""

from harness.analysis.advice import arithmetic, host, input_pipeline, machine, memory, synchronization
from harness.analysis.advice.code import code_for
from harness.analysis.advice.evidence import RunEvidence
from harness.analysis.advice.options import choose, failed_changes, split
from harness.analysis.advice.suggestion import Rule, Suggestion

RULES: tuple[Rule, ...] = (
    *input_pipeline.RULES,
    *synchronization.RULES,
    *arithmetic.RULES,
    *memory.RULES,
    *host.RULES,
    *machine.RULES,
)


def suggest(run: RunEvidence) -> list[Suggestion]:
    """Suggestions for a run: the largest gain first, then those without a bound on the time, in the order of
    the rules. Empty without evidence."""
    if not run.settled:
        return []
    suggestions = [suggestion for rule in RULES if (suggestion := _apply(rule, run)) is not None]
    return sorted(
        suggestions, key=lambda one: -1.0 if one.gain.share is None else one.gain.share, reverse=True
    )


def with_code_alone(suggestion: Suggestion) -> Suggestion:
    """Return a suggestion for the next run of a script, which has no flags: as lines of code."""
    lines = [code_for(suggestion.change), suggestion.code]
    return suggestion._replace(change={}, code="\n".join(filter(None, lines)))


def _apply(rule: Rule, run: RunEvidence) -> Suggestion | None:
    diagnosis = rule.find(run)
    if diagnosis is None:
        return None
    option = choose(run, diagnosis.options)
    if option is None and not diagnosis.by_hand:
        return None
    rows = run.settled
    own, others = ({}, {}) if option is None else split(run, option.change)
    return Suggestion(
        rule.key,
        diagnosis.title or rule.title,
        diagnosis.gain if option is None else option.gain,
        diagnosis.evidence,
        (*diagnosis.details, *failed_changes(run, diagnosis.options)),
        rows[0].step,
        rows[-1].step,
        diagnosis.why,
        own,
        diagnosis.by_hand,
        diagnosis.code if option is None else code_for(others),
    )
