"""Networks on vectors, pairs, graphs and sets."""

import random

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.scripts.own_networks.plan import Field, NetworkPlan, activation, width


def tabular(draw: random.Random) -> NetworkPlan:
    features, hidden = draw.choice((20, 60, 200)), width(draw, (64, 128, 256, 512))
    loss = draw.choice((nn.MSELoss(), nn.HuberLoss(), nn.SmoothL1Loss(), nn.L1Loss()))

    def make() -> tuple[nn.Module, nn.Module]:
        layers: list[nn.Module] = [nn.Linear(features, hidden)]
        for _ in range(draw.choice((1, 2, 4))):
            norm = draw.choice((nn.BatchNorm1d(hidden), nn.LayerNorm(hidden), nn.Identity()))
            layers += [norm, activation(draw), nn.Dropout(0.1), nn.Linear(hidden, hidden)]
        return nn.Sequential(*layers, nn.SELU(), nn.Linear(hidden, 1), nn.Flatten(0)), loss

    return NetworkPlan(Field((features,)), Field(()), make)


def float64(draw: random.Random) -> NetworkPlan:
    features, hidden = draw.choice((10, 50)), width(draw)

    def make() -> tuple[nn.Module, nn.Module]:
        layers = [nn.Linear(features, hidden), nn.Softplus(), nn.Linear(hidden, hidden), nn.Softplus()]
        return nn.Sequential(*layers, nn.Linear(hidden, 3)).double(), nn.MSELoss()

    return NetworkPlan(Field((features,), dtype=torch.float64), Field((3,), dtype=torch.float64), make)


class Siamese(nn.Module):
    def __init__(self, draw: random.Random, features: int) -> None:
        super().__init__()
        hidden = width(draw, (64, 128, 256))
        self.tower = nn.Sequential(
            nn.Linear(features, hidden), activation(draw), nn.LayerNorm(hidden), nn.Linear(hidden, 32)
        )

    def forward(self, pairs: Tensor) -> list[Tensor]:
        return [self.tower(one) for one in pairs.unbind(1)]


def similar(outputs: list[Tensor], targets: Tensor) -> Tensor:
    return functional.cosine_embedding_loss(outputs[0], outputs[1], targets.sign())


def triplets(outputs: list[Tensor], targets: Tensor) -> Tensor:
    return functional.triplet_margin_loss(*outputs) + 0 * targets.mean()


def siamese(draw: random.Random) -> NetworkPlan:
    features, count = draw.choice((64, 256)), draw.choice((2, 3))
    loss = similar if count == 2 else triplets
    return NetworkPlan(Field((count, features)), Field(()), lambda: (Siamese(draw, features), loss))


class Contrastive(nn.Module):
    def __init__(self, draw: random.Random, features: int) -> None:
        super().__init__()
        hidden = width(draw, (64, 128, 256))
        self.body = nn.Sequential(nn.Linear(features, hidden), activation(draw), nn.Linear(hidden, 64))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        left = functional.normalize(self.body(inputs), dim=-1)
        right = functional.normalize(self.body(targets), dim=-1)
        logits = left @ right.t() * self.scale.exp()
        labels = torch.arange(len(inputs))
        return (functional.cross_entropy(logits, labels) + functional.cross_entropy(logits.t(), labels)) / 2


def contrastive(draw: random.Random) -> NetworkPlan:
    features = draw.choice((64, 256))
    return NetworkPlan(Field((features,)), Field((features,)), lambda: Contrastive(draw, features))


class TwoHeads(nn.Module):
    def __init__(self, draw: random.Random, features: int) -> None:
        super().__init__()
        hidden = width(draw, (64, 128, 256))
        self.body = nn.Sequential(nn.Linear(features, hidden), activation(draw), nn.Linear(hidden, hidden))
        self.value, self.kind = nn.Linear(hidden, 2), nn.Linear(hidden, 8)

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        features = self.body(inputs)
        return {"value": self.value(features), "kind": self.kind(features)}


def two_losses(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    mean, log_variance = outputs["value"].unbind(1)
    likely = functional.gaussian_nll_loss(mean, targets.float(), log_variance.exp())
    return likely + 0.5 * functional.cross_entropy(outputs["kind"], targets)


def multitask(draw: random.Random) -> NetworkPlan:
    features = draw.choice((64, 256))
    return NetworkPlan(Field((features,)), Field((), 8), lambda: (TwoHeads(draw, features), two_losses))


class Factors(nn.Module):
    def __init__(self, draw: random.Random, users: int, items: int, is_sparse: bool) -> None:
        super().__init__()
        size = draw.choice((8, 16, 32))
        self.users = nn.Embedding(users, size, sparse=is_sparse)
        self.items = nn.Embedding(items, size, sparse=is_sparse)
        self.bias = nn.Embedding(items, 1, sparse=is_sparse)
        self.deep = nn.Sequential(nn.Linear(2 * size, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, pairs: Tensor) -> Tensor:
        users, items = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        wide = (users * items).sum(dim=1) + self.bias(pairs[:, 1]).squeeze(1)
        return wide + self.deep(torch.cat([users, items], dim=1)).squeeze(1)


def click_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(outputs, targets.float())


def recommender(draw: random.Random) -> NetworkPlan:
    users, items = draw.choice((500, 5000)), draw.choice((500, 2000))
    return NetworkPlan(
        Field((2,), 500), Field((), 2), lambda: (Factors(draw, users, items, False), click_loss)
    )


def sparse_recommender(draw: random.Random) -> NetworkPlan:
    users = draw.choice((5000, 20000))
    return NetworkPlan(Field((2,), 500), Field((), 2), lambda: (Factors(draw, users, 2000, True), click_loss))


class Experts(nn.Module):
    def __init__(self, draw: random.Random, features: int, count: int) -> None:
        super().__init__()
        hidden = width(draw, (32, 64, 128))
        self.router = nn.Linear(features, count)
        self.first = nn.Parameter(torch.randn(count, features, hidden) * 0.02)
        self.second = nn.Parameter(torch.randn(count, hidden, 10) * 0.02)
        self.best = draw.choice((0, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        logits = self.router(inputs)
        if self.best:
            least = logits.topk(self.best, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < least, float("-inf"))
        hidden = functional.relu(torch.einsum("bf,efh->beh", inputs, self.first))
        outputs = torch.einsum("beh,eho->beo", hidden, self.second)
        return torch.einsum("be,beo->bo", logits.softmax(dim=-1), outputs)


def experts(draw: random.Random) -> NetworkPlan:
    features, count = draw.choice((32, 128)), draw.choice((4, 8))
    return NetworkPlan(
        Field((features,)), Field((), 10), lambda: (Experts(draw, features, count), nn.CrossEntropyLoss())
    )


class ScaledTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs: Tensor, scale: Tensor) -> Tensor:
        outputs = torch.tanh(inputs)
        ctx.save_for_backward(outputs, scale)
        return outputs * scale

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        outputs, scale = ctx.saved_tensors
        return gradient * scale * (1 - outputs * outputs), (gradient * outputs).sum(dim=0)


class OwnFunction(nn.Module):
    def __init__(self, draw: random.Random, features: int) -> None:
        super().__init__()
        hidden = width(draw, (64, 128))
        self.layers = nn.ModuleList(nn.Linear(n, hidden) for n in (features, hidden, hidden))
        self.scales = nn.ParameterList(torch.ones(hidden) for _ in self.layers)
        self.head = nn.Linear(hidden, 6)

    def forward(self, inputs: Tensor) -> Tensor:
        for layer, scale in zip(self.layers, self.scales, strict=True):
            inputs = ScaledTanh.apply(layer(inputs), scale)
        return self.head(inputs)


def own_function(draw: random.Random) -> NetworkPlan:
    features = draw.choice((32, 128))
    loss = nn.CrossEntropyLoss(weight=torch.ones(6))
    return NetworkPlan(Field((features,)), Field((), 6), lambda: (OwnFunction(draw, features), loss))


class GraphNetwork(nn.Module):
    def __init__(self, draw: random.Random, nodes: int, features: int) -> None:
        super().__init__()
        hidden, edges = width(draw, (16, 32)), 4 * nodes
        self.register_buffer("sources", torch.arange(edges) * 7 % nodes)
        self.register_buffer("goals", torch.arange(edges) * 5 % nodes)
        self.first, self.second = nn.Linear(features, hidden), nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, 4)
        self.is_scattered = draw.random() < 0.5

    def message(self, states: Tensor) -> Tensor:
        sent = states[:, self.sources]
        if self.is_scattered:
            index = self.goals[None, :, None].expand_as(sent)
            return torch.zeros_like(states).scatter_add(1, index, sent)
        return torch.zeros_like(states).index_add(1, self.goals, sent)

    def forward(self, states: Tensor) -> Tensor:
        states = functional.relu(self.message(self.first(states)))
        return self.head(functional.relu(self.message(self.second(states)))).transpose(1, 2)


def graph(draw: random.Random) -> NetworkPlan:
    nodes, features = draw.choice((20, 100)), draw.choice((8, 32))
    return NetworkPlan(
        Field((nodes, features)),
        Field((nodes,), 4),
        lambda: (GraphNetwork(draw, nodes, features), nn.CrossEntropyLoss()),
    )


class NeuralOde(nn.Module):
    def __init__(self, draw: random.Random, features: int) -> None:
        super().__init__()
        hidden = width(draw, (32, 64, 128))
        self.field = nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, features))
        self.steps, self.checkpoints = draw.choice((5, 12)), draw.random() < 0.5
        self.is_reentrant = draw.random() < 0.3
        self.register_buffer("time_step", torch.tensor(0.1))

    def move(self, state: Tensor) -> Tensor:
        middle = state + 0.5 * self.time_step * self.field(state)
        return state + self.time_step * self.field(middle)

    def forward(self, state: Tensor) -> Tensor:
        if self.is_reentrant:
            state = state.clone().requires_grad_()
        for _ in range(self.steps):
            if self.checkpoints:
                state = checkpoint(self.move, state, use_reentrant=self.is_reentrant)
            else:
                state = self.move(state)
        return state


def neural_ode(draw: random.Random) -> NetworkPlan:
    features = draw.choice((8, 64, 256))
    return NetworkPlan(
        Field((features,)), Field((features,)), lambda: (NeuralOde(draw, features), nn.MSELoss())
    )


class PointNetwork(nn.Module):
    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        hidden = width(draw, (32, 64, 128))
        self.points = nn.Sequential(
            nn.Conv1d(3, hidden, 1),
            nn.BatchNorm1d(hidden),
            nn.ReLU(inplace=True),
            nn.Conv1d(hidden, 2 * hidden, 1),
        )
        self.head = nn.Sequential(nn.Linear(2 * hidden, hidden), activation(draw), nn.Linear(hidden, 8))

    def forward(self, clouds: Tensor) -> Tensor:
        distances = torch.cdist(clouds, clouds)
        near = distances.topk(4, largest=False).indices
        middle = torch.stack([cloud[rows].mean(dim=1) for cloud, rows in zip(clouds, near, strict=True)])
        return self.head(self.points((clouds - middle).transpose(1, 2)).max(dim=2).values)


def point_clouds(draw: random.Random) -> NetworkPlan:
    points = draw.choice((64, 200))
    return NetworkPlan(Field((points, 3)), Field((), 8), lambda: (PointNetwork(draw), nn.CrossEntropyLoss()))


class Mixer(nn.Module):
    def __init__(self, draw: random.Random, tokens: int, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(4))
        self.mixes = nn.ParameterList(torch.randn(tokens, tokens) * 0.02 for _ in range(4))
        self.wide = nn.ModuleList(nn.Linear(channels, 2 * channels) for _ in range(4))
        self.narrow = nn.ModuleList(nn.Linear(2 * channels, channels) for _ in range(4))
        self.head, self.act = nn.Linear(channels, 10), activation(draw)

    def forward(self, tokens: Tensor) -> Tensor:
        for norm, mix, wide, narrow in zip(self.norms, self.mixes, self.wide, self.narrow, strict=True):
            tokens = tokens + torch.einsum("btc,ts->bsc", norm(tokens), mix)
            tokens = tokens + narrow(self.act(wide(tokens)))
        return self.head(tokens.mean(dim=1))


def mixer(draw: random.Random) -> NetworkPlan:
    tokens, channels = draw.choice((16, 64)), width(draw)
    return NetworkPlan(
        Field((tokens, channels)),
        Field((), 10),
        lambda: (Mixer(draw, tokens, channels), nn.CrossEntropyLoss()),
    )
