"""Loops that compute their gradients in other ways than one backward pass per batch, as lines of a script."""

import random

from tests.bench.family_parts import add_evaluation, add_loader, add_update, evaluate, network, optimizer_of
from tests.bench.loop_parts import Lines


def differential_equation(lines: Lines, chance: random.Random) -> None:
    """A physics-informed network: derivatives by the inputs, trained by Adam and then by LBFGS."""
    lines.add(f"model = {network(1, 1)}", "optimizer = torch.optim.Adam(model.parameters(), lr=0.001)", "")
    with lines.block("def residual():"):
        lines.add(f"inputs = torch.rand({chance.choice((16, 32))}, 1, requires_grad=True)")
        lines.add("outputs = model(inputs)")
        lines.add("slope, = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)")
        lines.add("bend, = torch.autograd.grad(slope.sum(), inputs, create_graph=True)")
        lines.add("return (bend + outputs).square().mean()")
    lines.add("")
    with lines.block("for _ in range(8):"):
        add_update(lines, "residual()", "None", is_clear=False)
    lines.add("optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)", "")
    with lines.block("def closure():"):
        lines.add("optimizer.zero_grad()", "loss = residual()", "loss.backward()")
        lines.add("record.trained(None, loss)", "return loss")
    lines.add("", "for _ in range(4):", "    optimizer.step(closure)", "    record.updated()")
    lines.add("record.end(model)")


def attack(lines: Lines, chance: random.Random) -> None:
    """Adversarial training: the inputs of each batch are attacked first, at times in evaluation mode."""
    add_loader(lines, chance, in_memory=False)
    add_evaluation(lines)
    lines.add(f"model = {network(6, 3)}", f"optimizer = {optimizer_of(chance, 'model.parameters()')}")
    has_backward, is_eval = chance.random() < 0.5, chance.random() < 0.4
    with lines.block("for epoch in range(2):"):
        with lines.block("for inputs, targets in loader:"):
            lines.add("record.began()", "change = torch.zeros_like(inputs, requires_grad=True)")
            lines.add(*(["model.eval()"] if is_eval else []))
            with lines.block(f"for _ in range({chance.choice((1, 2, 3))}):"):
                lines.add("loss = F.cross_entropy(model(inputs + change), targets)")
                if has_backward:
                    lines.add("loss.backward()", "slope = change.grad.clone()", "change.grad.zero_()")
                else:
                    lines.add("slope, = torch.autograd.grad(loss, change)")
                lines.add("change.data += 0.1 * slope.sign()")
            lines.add(*(["model.train()"] if is_eval else []))
            loss = "F.cross_entropy(model((inputs + change).detach()), targets)"
            add_update(lines, loss, is_clear=False)
        evaluate(lines, "model")
    lines.add("record.end(model)")


def own_gradients(lines: Lines, chance: random.Random) -> None:
    """Gradients of `torch.autograd.grad`, for an optimizer."""
    add_loader(lines, chance)
    add_evaluation(lines)
    lines.add(f"model = {network(6, 3)}", f"optimizer = {optimizer_of(chance, 'model.parameters()')}")
    with lines.block("for epoch in range(2):"):
        with lines.block("for inputs, targets in loader:"):
            lines.add("loss = F.cross_entropy(model(inputs), targets)", "weights = list(model.parameters())")
            with lines.block("for weight, slope in zip(weights, torch.autograd.grad(loss, weights)):"):
                lines.add("weight.grad = slope")
            lines.add("record.trained(len(inputs), None)", "optimizer.step()")
            lines.add("record.updated(is_clear=False)")
        evaluate(lines, "model")
    lines.add("record.end(model)")


_DETECTOR = """
class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 3)

    def forward(self, images, targets):
        features = torch.stack([self.body(image[None])[0].mean((1, 2)) for image in images])
        return F.cross_entropy(self.head(features), torch.stack([one["label"] for one in targets]))


def collate(samples):
    return tuple(zip(*samples))


def sample():
    return torch.randn(1, 8, int(torch.randint(8, 10, ()))), {"label": torch.randint(3, ())}
"""
_GRAPHS = """
class Graphs(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, nodes, graphs):
        sums = torch.zeros(int(graphs.max()) + 1, 8).index_add(0, graphs, self.body(nodes).tanh())
        return self.head(sums)


def collate(samples):
    sizes = torch.tensor([len(nodes) for nodes, _ in samples])
    graphs = torch.arange(len(samples)).repeat_interleave(sizes)
    return torch.cat([nodes for nodes, _ in samples]), (graphs, torch.stack([one for _, one in samples]))


def sample():
    return torch.randn(int(torch.randint(2, 8, ())), 4), torch.randint(3, ())
"""


def own_update(lines: Lines, chance: random.Random) -> None:
    """Images of several sizes, or graphs, with an optimizer or with an update of the script's own."""
    are_images, has_optimizer = chance.random() < 0.5, chance.random() < 0.5
    lines.add(*(_DETECTOR if are_images else _GRAPHS).split("\n"), "")
    lines.add("data = [sample() for _ in range(45)]", f"model = {'Detector' if are_images else 'Graphs'}()")
    lines.add(f"loader = DataLoader(data, batch_size={chance.choice((4, 6))}, collate_fn=collate)")
    lines.add(*([f"optimizer = {optimizer_of(chance, 'model.parameters()')}"] if has_optimizer else []))
    with lines.block("for epoch in range(2):"), lines.block("for inputs, targets in loader:"):
        lines.add("record.began()")
        if are_images:
            loss, samples = "model(list(inputs), targets)", "len(inputs)"
        else:
            loss, samples = "F.cross_entropy(model(inputs, targets[0]), targets[1])", "len(targets[1])"
        if has_optimizer:
            add_update(lines, loss, samples)
        else:
            lines.add("model.zero_grad()", f"loss = {loss}", "loss.backward()")
            lines.add("for weight in model.parameters():", "    weight.data.sub_(0.01 * weight.grad)")
            lines.add(f"record.trained({samples}, loss)", "record.updated(is_clear=False)")
    lines.add("record.end(model)")


def projection(lines: Lines, chance: random.Random) -> None:
    """Several tasks per batch: their gradients are computed one after the other, and combined."""
    add_loader(lines, chance, in_memory=False)
    add_evaluation(lines)
    lines.add(f"model = {network(6, 3)}", f"optimizer = {optimizer_of(chance, 'model.parameters()')}")
    with lines.block("for epoch in range(2):"):
        with lines.block("for inputs, targets in loader:"):
            lines.add("record.began()", "outputs, sums = model(inputs), []")
            lines.add("losses = F.cross_entropy(outputs, targets), outputs.square().mean()")
            with lines.block("for loss in losses:"):
                lines.add("optimizer.zero_grad()", "loss.backward(retain_graph=True)")
                lines.add("record.trained(len(inputs) * (loss is losses[0]), loss)")
                lines.add("sums.append([weight.grad.clone() for weight in model.parameters()])")
            with lines.block("for weight, *gradients in zip(model.parameters(), *sums):"):
                lines.add("weight.grad = sum(gradients)")
            lines.add("optimizer.step()", "record.updated()")
        evaluate(lines, "model")
    lines.add("record.end(model)")


def sharpness(lines: Lines, chance: random.Random) -> None:
    """Sharpness-aware minimization: the gradients of each batch at a second point."""
    add_loader(lines, chance, in_memory=False)
    add_evaluation(lines)
    lines.add(f"model = {network(6, 3)}", f"optimizer = {optimizer_of(chance, 'model.parameters()')}")
    with lines.block("for epoch in range(2):"):
        with lines.block("for inputs, targets in loader:"):
            lines.add("record.began()", "F.cross_entropy(model(inputs), targets).backward()")
            lines.add("with torch.no_grad():")
            lines.add("    moves = [0.01 * weight.grad for weight in model.parameters()]")
            lines.add("    for weight, move in zip(model.parameters(), moves):", "        weight += move")
            lines.add("optimizer.zero_grad()", "loss = F.cross_entropy(model(inputs), targets)")
            lines.add("loss.backward()", "record.trained(len(inputs), loss)", "with torch.no_grad():")
            lines.add("    for weight, move in zip(model.parameters(), moves):", "        weight -= move")
            lines.add("optimizer.step()", "optimizer.zero_grad()", "record.updated()")
        evaluate(lines, "model")
    lines.add("record.end(model)")


def private(lines: Lines, chance: random.Random) -> None:
    """The gradients of each sample are computed alone, clipped, and summed."""
    add_loader(lines, chance, in_memory=False)
    lines.add(f"model = {network(6, 3)}", f"optimizer = {optimizer_of(chance, 'model.parameters()')}")
    with lines.block("for epoch in range(2):"), lines.block("for inputs, targets in loader:"):
        lines.add("record.began()", "sums = [torch.zeros_like(weight) for weight in model.parameters()]")
        with lines.block("for one, target in zip(inputs, targets):"):
            lines.add("optimizer.zero_grad()", "loss = F.cross_entropy(model(one[None]), target[None])")
            lines.add("loss.backward()", "record.trained(1, loss)")
            lines.add("nn.utils.clip_grad_norm_(model.parameters(), 1.0)")
            lines.add("for total, weight in zip(sums, model.parameters()):", "    total += weight.grad")
        lines.add("for total, weight in zip(sums, model.parameters()):")
        lines.add("    weight.grad = total / len(inputs)", "optimizer.step()", "record.updated()")
    lines.add("record.end(model)")


def architecture(lines: Lines, chance: random.Random) -> None:
    """A search for an architecture: its weights and its choices learn from a loader each."""
    batch, has_next = chance.choice((4, 6)), chance.random() < 0.5
    lines.add(
        "",
        "class Net(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        "        self.one, self.two, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)",
        "        self.choice = nn.Parameter(torch.zeros(2))",
        "",
        "    def forward(self, inputs):",
        "        shares = self.choice.softmax(0)",
        "        return self.head(shares[0] * self.one(inputs) + shares[1] * self.two(inputs).relu())",
        "",
        "model = Net()",
        "halves = random_split(TensorDataset(torch.randn(60, 6), torch.randint(3, (60,))), [30, 30])",
        f"loader, others = (DataLoader(half, batch_size={batch}, shuffle=True) for half in halves)",
    )
    weights = "[*model.one.parameters(), *model.two.parameters(), *model.head.parameters()]"
    lines.add(f"optimizer = {optimizer_of(chance, weights)}")
    lines.add("optimizer_c = torch.optim.Adam([model.choice], lr=0.001)")
    with lines.block("for epoch in range(2):"):
        if has_next:
            lines.add("rest = iter(others)")
            block = lines.block("for inputs, targets in loader:")
        else:
            block = lines.block("for (inputs, targets), (more, classes) in zip(loader, others):")
        with block:
            lines.add(*(["more, classes = next(rest)"] if has_next else []), "record.began()")
            add_update(
                lines, "F.cross_entropy(model(more), classes)", "len(more)", "optimizer_c", is_last=False
            )
            add_update(lines, "F.cross_entropy(model(inputs), targets)", is_clear=False)
    lines.add("record.end(model)")


def triplets(lines: Lines, chance: random.Random) -> None:
    """A model that is called with each of three inputs before the backward pass."""
    lines.add("data = TensorDataset(*(torch.randn(34, 6) for _ in range(3)))")
    lines.add(f"loader = DataLoader(data, batch_size={chance.choice((4, 8))}, shuffle=True)")
    lines.add(f"model = {network(6, 4)}", f"optimizer = {optimizer_of(chance, 'model.parameters()')}")
    with lines.block("for epoch in range(2):"), lines.block("for inputs, same, other in loader:"):
        lines.add("record.began()")
        add_update(lines, "F.triplet_margin_loss(model(inputs), model(same), model(other))")
    lines.add("record.end(model)")


def cached(lines: Lines, chance: random.Random) -> None:
    """A contrastive loss of more samples than fit into memory: features without gradients first, then each
    part of the batch once more."""
    add_loader(lines, chance)
    add_evaluation(lines)
    lines.add(f"model = {network(6, 4)}", f"optimizer = {optimizer_of(chance, 'model.parameters()')}")
    with lines.block("for epoch in range(2):"):
        with lines.block("for inputs, _ in loader:"):
            lines.add("record.began()", "with torch.no_grad():")
            lines.add("    features = torch.cat([model(part) for part in inputs.split(3)])")
            lines.add("features.requires_grad_()", "places = torch.arange(len(inputs))")
            lines.add("F.cross_entropy(features @ features.T, places).backward()", "optimizer.zero_grad()")
            with lines.block("for part, slope in zip(inputs.split(3), features.grad.split(3)):"):
                lines.add("loss = (model(part) * slope).sum()", "loss.backward()")
                lines.add("record.trained(len(part), loss)")
            lines.add("optimizer.step()", "record.updated(is_clear=False)")
        evaluate(lines, "model")
    lines.add("record.end(model)")


def energy(lines: Lines, chance: random.Random) -> None:
    """An energy-based model: samples are drawn along its slope, at times in evaluation mode."""
    add_loader(lines, chance, in_memory=False)
    lines.add(f"model = {network(6, 1)}", f"optimizer = {optimizer_of(chance, 'model.parameters()')}")
    is_eval = chance.random() < 0.5
    with lines.block("for epoch in range(2):"), lines.block("for inputs, _ in loader:"):
        lines.add(
            "record.began()", "drawn = torch.randn_like(inputs)", *(["model.eval()"] if is_eval else [])
        )
        with lines.block(f"for _ in range({chance.choice((2, 5))}):"):
            lines.add("drawn.requires_grad_()", "slope, = torch.autograd.grad(model(drawn).sum(), drawn)")
            lines.add("drawn = (drawn - 0.1 * slope).detach()")
        lines.add(*(["model.train()"] if is_eval else []))
        add_update(lines, "model(inputs).mean() - model(drawn).mean()", is_clear=False)
    lines.add("record.end(model)")


GRADIENT_FAMILIES = {
    "differential equation": differential_equation,
    "attack": attack,
    "own gradients": own_gradients,
    "own update": own_update,
    "projection": projection,
    "sharpness": sharpness,
    "private": private,
    "architecture": architecture,
    "triplets": triplets,
    "gradient cache": cached,
    "energy": energy,
}
