"""The page docs/advice.md, from the rules: `python -m harness.analysis.advice.docs` prints it."""

import inspect

from harness.analysis.advice.rules import RULES
from harness.analysis.advice.suggestion import Rule

_HEAD = """# Advice

Made by `make docs` from `harness/analysis/advice/`; a test holds the two equal.

Advice is given on the Profiler page and by `stepscope advise RUN`, from the last 1,000 steps under the
settings in effect; the steps of warm-up, changes and profiles are left out. Without evidence there is none.
What is won is stated as a bound that follows from the evidence, and the largest comes first. Nothing is
proposed that the device or the model cannot do, that is on already, that the run has rejected, or that was
tried in this run without a gain in samples a second. After a change the page says what could be
*observed*: steps before and after it, which does not prove what caused the difference.
"""


_FOOT = """## What is not looked at

Which lines make the CPU wait is looked at in two steps after the warm-up and two after each change, on CUDA
alone; what happens later or seldom is not seen, nor what torch's sync debug mode leaves out
(torch.distributed, torch.sparse, `torch.cuda.synchronize`). What waiting in the midst of a step costs does
not show in the gap between steps. What a larger number of loader workers costs in memory,
and what a larger batch or lower precision does to the loss, has to be watched.
"""


def markdown() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(_section(rule) for rule in RULES), _FOOT])


def _section(rule: Rule) -> str:
    about = " ".join((inspect.getdoc(rule.find) or "").split())
    lines = [
        f"## {rule.title}",
        "",
        f"Rule `{rule.key}`. {about}",
        "",
        f"- **Threshold:** {rule.threshold}",
        f"- **Source:** {rule.source}",
        f"- **Evidence:** {rule.evidence}",
        f"- **Change:** {rule.change}",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown(), end="")
