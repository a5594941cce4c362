"""Own models at random: files with a network of one of the families in `tests.scripts.own_networks`, and
settings for each."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import SettingError
from harness.settings.resolve import check_fit, resolve
from tests.bench.draws import Draw, deal, processors_here
from tests.scripts.own_networks import FAMILIES, plan_of

_LARGEST_BATCH = 128
# Adam, AdamW and all fused optimizers refuse sparse gradients, and the fused ones complex weights.
_FIXED_VALUES: Mapping[str, Mapping[str, str]] = {
    "sparse_recommender": {"optimizer": "sgd", "optimizer_impl": "auto"},
    "fourier": {"optimizer_impl": "auto"},
}
_FILE = '''"""A network of the family {family}."""

from tests.scripts.own_networks import plan_of
from tests.scripts.own_networks.plan import RandomSamples


def build(settings):
    return plan_of("{family}", {seed}).make()


def dataset(settings):
    return RandomSamples(plan_of("{family}", {seed}))
'''


def draw_own(count: int, seed: int, folder: Path) -> list[Draw]:
    """`count` own models, written into `folder`, with settings. Families, processors and threads take turns,
    so that each has its share."""
    source = random.Random(seed)
    families = deal(list(FAMILIES), count, source)
    places = deal([(one, threads) for one in processors_here() for threads in (1, 2)], count, source)
    return [
        Draw(own_values(family, source, folder), processor, threads)
        for family, (processor, threads) in zip(families, places, strict=True)
    ]


def own_values(family: str, source: random.Random, folder: Path) -> dict[str, Any]:
    """Settings at random for a new network of `family`; drawn again until they fit together."""
    seed = source.randrange(10**6)
    names = _written(family, seed, folder)
    are_images = len(plan_of(family, seed).inputs.size) == 3
    while True:
        values = {
            **names,
            "batch_size": max(2, round(_LARGEST_BATCH ** source.random())),
            "amp": source.choice(("off", "off", "bf16")),
            "grad_accumulation": source.choice((1, 1, 2, 3)),
            "optimizer": source.choice(("sgd", "adam", "adamw")),
            "optimizer_impl": source.choice(("auto", "loop", "foreach", "fused")),
            "set_to_none": source.random() < 0.8,
            "channels_last": are_images and source.random() < 0.3,
            "num_workers": 0,
            **_FIXED_VALUES.get(family, {}),
        }
        try:
            check_fit(resolve(values))
        except SettingError:
            continue
        return values


def own_cap_values(family: str, source: random.Random, folder: Path) -> dict[str, Any]:
    """Settings with a cap at random for a new network of `family`."""
    return {
        **_written(family, source.randrange(10**6), folder),
        "memory_cap_gib": round(source.uniform(0.14, 0.2), 3),
        "amp": source.choice(("off", "off", "bf16")),
        "optimizer": source.choice(("sgd", "adamw")),
        "num_workers": 0,
        **_FIXED_VALUES.get(family, {}),
    }


def _written(family: str, seed: int, folder: Path) -> dict[str, str]:
    """Write a network of `family` into `folder`; return the settings that name it and its samples."""
    file = folder / f"{family}_{seed}.py"
    file.write_text(_FILE.format(family=family, seed=seed), encoding="utf-8")
    return {"model": f"{file}:build", "data": f"{file}:dataset"}
