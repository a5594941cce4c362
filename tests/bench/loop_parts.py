"""The models, the data and the batches of random training loops, as lines of a script."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.bench.loop_draws import Evaluated, LoopDraw, Network, Source

_CLASSES = {
    Network.MLP: """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(16, 3)

    def forward(self, inputs):
        return self.head(self.body(inputs))
""",
    Network.CNN: """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(144, 3)

    def forward(self, inputs):
        return self.head(self.body(inputs))
""",
    Network.RNN: """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.GRU(3, 12, batch_first=True)
        self.head = nn.Linear(12, 3)

    def forward(self, inputs, hidden):
        outputs, hidden = self.body(inputs, hidden)
        return self.head(outputs[:, -1]), hidden
""",
    Network.TRANSFORMER: """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.body = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 20)

    def forward(self, inputs):
        mask = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1])
        return self.head(self.body(self.embedding(inputs), src_mask=mask, is_causal=True))
""",
}
_INPUTS = {
    Network.CNN: "torch.randn({n}, 1, 8, 8)",
    Network.RNN: "torch.randn({n}, 5, 3)",
    Network.TRANSFORMER: "torch.randint(20, ({n}, 7))",
}
_MODELS = {
    Network.GAN: {
        "generator": "nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))",
        "discriminator": "nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(), nn.Linear(16, 1))",
    },
    Network.HEADS: {
        "encoder": "nn.Sequential(nn.Linear(6, 16), nn.ReLU())",
        "head_a": "nn.Linear(16, 3)",
        "head_b": "nn.Linear(16, 2)",
    },
}
_PREDICTIONS = {
    Network.RNN: "network(inputs, None)[0]",
    Network.GAN: "discriminator(inputs)",
    Network.HEADS: "head_a(encoder(inputs))",
}


class Lines:
    """The lines of a script, and the indentation of the next one."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def add(self, *lines: str) -> None:
        """Add lines; each may have lines of its own."""
        for text in lines:
            self._lines += ["    " * self._depth + line if line else "" for line in text.split("\n")]

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add `head`; until the context ends, lines are indented."""
        self.add(head)
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def block_if(self, head: str) -> Iterator[None]:
        """Like `block`, unless `head` is empty."""
        if not head:
            yield
            return
        with self.block(head):
            yield

    @property
    def text(self) -> str:
        """The script."""
        return "\n".join(self._lines) + "\n"


def models_of(network: Network) -> dict[str, str]:
    """Return the names of the models, and the expressions that make them."""
    return _MODELS.get(network, {"model": "Net()"})


def add_classes(lines: Lines, draw: LoopDraw) -> None:
    """Add the classes that the script defines."""
    lines.add(*_CLASSES.get(draw.network, "").split("\n")[:-1])
    if draw.source is Source.ITERABLE:
        lines.add(
            "",
            "",
            "class Stream(IterableDataset):",
            "    def __init__(self, *tensors):",
            "        self.tensors = tensors",
            "",
            "    def __iter__(self):",
            "        return zip(*self.tensors)",
        )
    if draw.source is Source.CYCLE:
        lines.add("", "", "def cycle(loader):", "    while True:", "        yield from loader")


def add_data(lines: Lines, draw: LoopDraw) -> None:
    """Add the tensors, and the loaders over them."""
    lines.add(f"all_inputs = {_inputs(draw.network, draw.samples)}", _targets(draw.network, draw.samples))
    batch = draw.batch
    match draw.source:
        case Source.LIST:
            lines.add(f"loader = list(zip(all_inputs.split({batch}), all_targets.split({batch})))")
        case Source.SLICES:
            pass
        case Source.ITERABLE:
            lines.add(f"loader = DataLoader(Stream(all_inputs, all_targets), batch_size={batch})")
        case Source.SAMPLER:
            lines.add("data = TensorDataset(all_inputs, all_targets)")
            lines.add(f"sampler = BatchSampler(RandomSampler(data), {batch}, drop_last=False)")
            lines.add("loader = DataLoader(data, batch_sampler=sampler)")
        case _:
            options = {Source.DROP_LAST: ", drop_last=True", Source.WORKERS: ", num_workers=2"}
            option = options.get(draw.source, "")
            lines.add("data = TensorDataset(all_inputs, all_targets)")
            lines.add(f"loader = DataLoader(data, batch_size={batch}, shuffle=True{option})")
    if draw.source is Source.ZIP:
        others = _inputs(draw.network, 3 * draw.samples)
        lines.add(f"unlabeled = DataLoader(TensorDataset({others}), batch_size={batch // 2 + 1})")
    if draw.evaluated is Evaluated.SAME and draw.source is not Source.SLICES:
        lines.add("held_out = loader")
        return
    lines.add(f"more = {_inputs(draw.network, 30)}")
    if draw.has_loader:
        lines.add(f"held_out = DataLoader(TensorDataset(more, more), batch_size={batch + 3})")
    else:
        lines.add(f"held_out = list(zip(more.split({batch + 3}), more.split({batch + 3})))")


def _inputs(network: Network, count: int) -> str:
    return _INPUTS.get(network, "torch.randn({n}, 6)").format(n=count)


def _targets(network: Network, count: int) -> str:
    if network is Network.TRANSFORMER:
        return "all_targets = all_inputs.roll(-1, 1)"
    return f"all_targets = torch.randint(3, ({count},))"


def prediction(network: Network) -> str:
    """Return the expression of a call of `network` with `inputs`."""
    return _PREDICTIONS.get(network, "network(inputs)")


def next_batch(lines: Lines, draw: LoopDraw) -> None:
    """Add the lines that take a batch by `next`."""
    if draw.source is Source.CYCLE:
        lines.add("inputs, targets = next(batches)")
        return
    lines.add("try:", "    inputs, targets = next(batches)", "except StopIteration:")
    lines.add("    batches = iter(loader)", "    inputs, targets = next(batches)")


@contextmanager
def batches_of_epoch(lines: Lines, draw: LoopDraw) -> Iterator[None]:
    """Add the loop over the batches of an epoch; until the context ends, lines are its body."""
    if draw.source is Source.SLICES:
        lines.add(f"order = torch.randperm({draw.samples})")
        head = f"for index, start in enumerate(range(0, {draw.samples}, {draw.batch}), start=1):"
    elif draw.source is Source.ZIP:
        head = "for index, ((inputs, targets), (others,)) in enumerate(zip(loader, unlabeled), start=1):"
    else:
        head = "for index, (inputs, targets) in enumerate(loader, start=1):"
    with lines.block(head):
        if draw.source is Source.SLICES:
            lines.add(f"chosen = order[start : start + {draw.batch}]")
            lines.add("inputs, targets = all_inputs[chosen], all_targets[chosen]")
        yield
