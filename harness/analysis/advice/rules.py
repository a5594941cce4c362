"""Every rule, and what they suggest together, in the order of what can be won."""

from harness.analysis.advice import arithmetic, feeding, host, machine, memory, waiting
from harness.analysis.advice.known import Known
from harness.analysis.advice.proposing import choose, tries
from harness.analysis.advice.suggestion import Finding, Rule, Suggestion

RULES: tuple[Rule, ...] = (
    *feeding.RULES,
    *waiting.RULES,
    *arithmetic.RULES,
    *memory.RULES,
    *host.RULES,
    *machine.RULES,
)


def suggest(known: Known) -> list[Suggestion]:
    """What to do about this run: the largest gain first, then what has no bound on the time, in the order of
    the rules. Empty without evidence."""
    if not known.settled:
        return []
    found = [told for rule in RULES if (told := _told(rule, known)) is not None]
    return sorted(found, key=lambda told: -1.0 if told.gain.share is None else told.gain.share, reverse=True)


def _told(rule: Rule, known: Known) -> Suggestion | None:
    finding: Finding | None = rule.find(known)
    if finding is None:
        return None
    option = choose(known, finding.options)
    if option is None and not finding.by_hand:
        return None
    rows = known.settled
    return Suggestion(
        rule.key,
        rule.title,
        finding.gain if option is None else option.gain,
        finding.evidence,
        (*finding.details, *tries(known, finding.options)),
        rows[0].step,
        rows[-1].step,
        finding.why,
        {} if option is None else option.change,
        finding.by_hand,
    )
