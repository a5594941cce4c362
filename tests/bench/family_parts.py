"""The data, models and steps that the families of `tests.bench.loop_families` have in common, as lines of a
script."""

import random

from tests.bench.loop_parts import Lines

_OPTIMIZERS = (
    "torch.optim.SGD({}, lr=0.02)",
    "torch.optim.SGD({}, lr=0.02, momentum=0.9)",
    "torch.optim.Adam({}, lr=0.003)",
    "torch.optim.RMSprop({}, lr=0.002)",
)


def network(inputs: int, outputs: int, hidden: int = 12) -> str:
    """Return the expression of a small model."""
    return f"nn.Sequential(nn.Linear({inputs}, {hidden}), nn.ReLU(), nn.Linear({hidden}, {outputs}))"


def optimizer_of(chance: random.Random, parameters: str) -> str:
    """Return the expression of an optimizer."""
    return chance.choice(_OPTIMIZERS).format(parameters)


def add_loader(lines: Lines, chance: random.Random, *, in_memory: bool | None = None) -> int:
    """Add `loader` over inputs with six features and targets of three classes, and `held_out`, both of torch
    or lists in memory; return the size of the batches. `in_memory` is which of both; None: either."""
    count, batch = chance.randint(30, 60), chance.choice((4, 6, 8))
    if in_memory is None:
        in_memory = chance.random() < 0.25
    lines.add(f"data = TensorDataset(torch.randn({count}, 6), torch.randint(3, ({count},)))")
    lines.add("more = TensorDataset(torch.randn(20, 6), torch.randint(3, (20,)))")
    if in_memory:
        lines.add(f"loader = list(zip(*(tensor.split({batch}) for tensor in data.tensors)))")
        lines.add(f"held_out = list(zip(*(tensor.split({batch + 3}) for tensor in more.tensors)))")
        return batch
    options = chance.choice(("", ", shuffle=True", ", drop_last=True", ", shuffle=True, num_workers=1"))
    lines.add(f"loader = DataLoader(data, batch_size={batch}{options})")
    lines.add(f"held_out = DataLoader(more, batch_size={chance.choice((batch, batch + 3))})")
    return batch


def add_evaluation(lines: Lines, call: str = "network(inputs)") -> None:
    """Add a function that evaluates a network on `held_out`."""
    lines.add("", "def evaluate(network):", "    network.eval()", "    with torch.no_grad():")
    lines.add("        for inputs, _ in held_out:", f"            {call}", "    network.train()", "")


def evaluate(lines: Lines, name: str) -> None:
    """Add the evaluation of a network."""
    lines.add("with record.evaluation():", f"    evaluate({name})")


def add_update(
    lines: Lines,
    loss: str,
    samples: str = "len(inputs)",
    optimizer: str = "optimizer",
    *,
    is_last: bool = True,
    is_clear: bool = True,
) -> None:
    """Add the gradients of a loss, and an update, which is the last one of the step if `is_last`."""
    lines.add(f"loss = {loss}", f"{optimizer}.zero_grad()", "loss.backward()")
    lines.add(f"record.trained({samples}, loss)", f"{optimizer}.step()")
    if is_last:
        lines.add("record.updated()" if is_clear else "record.updated(is_clear=False)")


def add_classification(lines: Lines, model: str = "model") -> None:
    """Add a step of a classifier with the batch of a loader."""
    lines.add("record.began()")
    add_update(lines, f"F.cross_entropy({model}(inputs), targets)")


def add_average(lines: Lines, average: str, model: str) -> None:
    """Add the update of an average of a model's weights."""
    lines.add("with torch.no_grad():")
    lines.add(f"    for mean, weight in zip({average}.parameters(), {model}.parameters()):")
    lines.add("        mean.lerp_(weight, 0.05)")
