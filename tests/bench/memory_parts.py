"""Parts of random training scripts: tasks, and what a behavior of their memory consists of."""

from random import Random
from typing import NamedTuple

from harness.records.memory import LeakSeries


class Task(NamedTuple):
    """A model and its batches: source text, with `outputs` and `loss` computed from `x` and `y`."""

    name: str
    has_lengths: bool
    model: str
    sample: str
    forward: str
    width: int


TASKS = (
    Task(
        "mlp",
        False,
        "nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), "
        "nn.Linear(WIDTH, 8))",
        "torch.randn(64), torch.tensor(number % 8)",
        "outputs = model(x)\nloss = F.cross_entropy(outputs, y)",
        96,
    ),
    Task(
        "cnn",
        False,
        "nn.Sequential(nn.Conv2d(1, WIDTH, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), "
        "nn.Linear(WIDTH * 9, 8))",
        "torch.randn(1, 12, 12), torch.tensor(number % 8)",
        "outputs = model(x)\nloss = F.cross_entropy(outputs, y)",
        8,
    ),
    Task(
        "rnn",
        True,
        "Recurrent()",
        "torch.randn(LENGTH, 16), torch.tensor(number % 8)",
        "outputs = model(x)\nloss = F.cross_entropy(outputs, y)",
        32,
    ),
    Task(
        "transformer",
        True,
        "Tokens()",
        "torch.randint(0, 50, (LENGTH,)), torch.tensor(number % 8)",
        "outputs = model(x)\nloss = F.cross_entropy(outputs, y)",
        32,
    ),
    Task(
        "autoencoder",
        False,
        "nn.Sequential(nn.Linear(128, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 128))",
        "torch.randn(128), torch.tensor(number % 8)",
        "outputs = model(x)\nloss = F.mse_loss(outputs, x)",
        32,
    ),
    Task(
        "embedding",
        False,
        "nn.Sequential(nn.EmbeddingBag(500, WIDTH), nn.Linear(WIDTH, 8))",
        "torch.randint(0, 500, (12,)), torch.tensor(number % 8)",
        "outputs = model(x)\nloss = F.cross_entropy(outputs, y)",
        24,
    ),
    Task(
        "gan",
        False,
        "nn.Sequential(nn.Linear(64, WIDTH), nn.LeakyReLU(), nn.Linear(WIDTH, 1))",
        "torch.randn(64), torch.tensor(number % 8)",
        "fake = generator(torch.randn(len(x), 16))\n"
        "outputs = model(x)\n"
        "loss = F.softplus(-outputs).mean() + F.softplus(model(fake.detach())).mean()",
        64,
    ),
)


class Behavior(NamedTuple):
    """The use of memory by a script. `leaks` is the series that grows, and `bytes_per_step` its growth per
    update; None where only a measurement says it. `names` are the variables that may be named as its cause.
    `beside` is a series that grows with it, for which a long run may call a leak too."""

    name: str
    leaks: LeakSeries | None = None
    bytes_per_step: int | None = None
    names: tuple[str, ...] = ()
    beside: LeakSeries | None = None
    top: str = ""
    setup: str = ""
    batch: str = ""
    after_loss: str = ""
    after_step: str = ""
    after_epoch: str = ""
    in_forward: str = ""
    in_sample: str = ""
    backward: str = "loss.backward()"
    lengths: str | None = None
    checkpoints: bool = False


class Plan(NamedTuple):
    """The quantities that behaviors depend on."""

    draw: Random
    elements: int
    steps: int
    micro_batches: int
    batch_size: int

    @property
    def step_bytes(self) -> int:
        """Bytes of as many float32 per step."""
        return 4 * self.elements
