"""Networks as people write them, in families, each with sizes and parts drawn from a seed."""

import random
from collections.abc import Mapping

from tests.scripts.own_networks import features, images, sequences
from tests.scripts.own_networks.plan import Family, NetworkPlan

FAMILIES: Mapping[str, Family] = {
    family.__name__: family
    for family in (
        images.unet,
        images.convnext,
        images.squeeze,
        images.vae,
        images.volumes,
        images.fourier,
        images.discriminator,
        images.wavenet,
        images.superresolution,
        images.frozen,
        images.distillation,
        images.detection,
        features.tabular,
        features.float64,
        features.siamese,
        features.contrastive,
        features.multitask,
        features.recommender,
        features.sparse_recommender,
        features.experts,
        features.own_function,
        features.graph,
        features.neural_ode,
        features.point_clouds,
        features.mixer,
        sequences.gpt,
        sequences.vit,
        sequences.encoder,
        sequences.tagger,
        sequences.speech,
        sequences.bag_of_words,
        sequences.cells,
        sequences.translator,
        sequences.selective,
    )
}


def plan_of(family: str, seed: int) -> NetworkPlan:
    """Return the network of a family that `seed` draws, the same each time."""
    return FAMILIES[family](random.Random(seed))
