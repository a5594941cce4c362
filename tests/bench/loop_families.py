"""The scripts of random training loops: variations of one loop, and families of loops of other forms."""

import random
from textwrap import indent
from typing import NamedTuple

from tests.bench.agent_families import AGENT_FAMILIES
from tests.bench.gradient_families import GRADIENT_FAMILIES
from tests.bench.loop_draws import draw_loop
from tests.bench.loop_parts import Lines
from tests.bench.loop_script import imports_of, script_of
from tests.bench.model_families import MODEL_FAMILIES
from tests.bench.sequence_families import SEQUENCE_FAMILIES
from tests.bench.task_families import TASK_FAMILIES

FAMILIES = AGENT_FAMILIES | GRADIENT_FAMILIES | MODEL_FAMILIES | SEQUENCE_FAMILIES | TASK_FAMILIES
# Of all loops; the others are variations of the usual one.
_SHARE = 0.4
_FUNCTIONS = 0.4


class LoopScript(NamedTuple):
    """A script: its seed, a description in one line, and the text."""

    seed: int
    words: str
    text: str


def draw_script(seed: int) -> LoopScript:
    """Return the script of `seed`."""
    chance = random.Random(f"family {seed}")
    if chance.random() < _SHARE:
        return family_script(seed, chance.choice(sorted(FAMILIES)))
    draw = draw_loop(seed)
    return LoopScript(seed, draw.words, script_of(draw))


def family_script(seed: int, name: str) -> LoopScript:
    """Return the script of `seed` in the family of this name. Its argument is the path of the record."""
    chance, lines = random.Random(seed), Lines()
    is_function = chance.random() < _FUNCTIONS
    FAMILIES[name](lines, chance)
    option = "" if "DataLoader(" in lines.text else ", has_loader=False"
    body = f"torch.manual_seed({seed})\nrecord = Record(sys.argv[1]{option})\n{lines.text}"
    if is_function:
        body = f'def main():\n{indent(body, "    ")}\n\nif __name__ == "__main__":\n    main()\n'
    return LoopScript(seed, name, f'"""{name}."""\n\n{imports_of(body)}\n\n{body}')
