"""Loops over several tasks, stages or data sets, as lines of a script."""

import random

from tests.bench.family_parts import (
    add_classification,
    add_evaluation,
    add_loader,
    add_update,
    evaluate,
    network,
    optimizer_of,
)
from tests.bench.loop_parts import Lines


def meta_learning(lines: Lines, chance: random.Random) -> None:
    """MAML: an update from the losses of several tasks, each after a few steps on a copy of the weights."""
    tasks, inner, is_joint = chance.choice((2, 3)), chance.choice((1, 2)), chance.random() < 0.5
    lines.add(f"model = {network(6, 1)}", f"optimizer = {optimizer_of(chance, 'model.parameters()')}")
    with lines.block("for _ in range(7):"):
        lines.add("optimizer.zero_grad()", "total = 0.0")
        with lines.block(f"for task in range({tasks}):"):
            lines.add("weights = dict(model.named_parameters())", "inputs, others = torch.randn(2, 5, 6)")
            with lines.block(f"for _ in range({inner}):"):
                lines.add("loss = torch.func.functional_call(model, weights, (inputs,)).square().mean()")
                lines.add("changes = torch.autograd.grad(loss, weights.values(), create_graph=True)")
                lines.add("pairs = zip(weights.items(), changes)")
                lines.add("weights = {name: one - 0.01 * change for (name, one), change in pairs}")
            lines.add("loss = torch.func.functional_call(model, weights, (others,)).square().mean()")
            lines.add("total = total + loss" if is_joint else "loss.backward()")
        lines.add(*(["loss = total", "loss.backward()"] if is_joint else []))
        lines.add("record.trained(None, loss)", "optimizer.step()", "record.updated(is_clear=False)")
    lines.add("record.end(model)")


def copies(lines: Lines, chance: random.Random) -> None:
    """Reptile: a copy of the model learns each task, and the model follows it."""
    lines.add(f"model = {network(6, 1)}")
    evaluates = chance.random() < 0.5
    with lines.block("for _ in range(5):"):
        lines.add("fast = copy.deepcopy(model)", f"optimizer = {optimizer_of(chance, 'fast.parameters()')}")
        with lines.block(f"for _ in range({chance.choice((3, 5))}):"):
            lines.add("record.began()", "inputs = torch.randn(5, 6)")
            add_update(lines, "(fast(inputs)[:, 0] - inputs.sum(1)).square().mean()")
        lines.add(
            "with torch.no_grad():", "    for one, other in zip(model.parameters(), fast.parameters()):"
        )
        lines.add("        one.lerp_(other, 0.5)")
        if evaluates:
            lines.add("model.eval()", "with record.evaluation(), torch.no_grad():")
            lines.add("    model(torch.randn(9, 6))", "model.train()")
    lines.add("record.end(model)")


def federation(lines: Lines, chance: random.Random) -> None:
    """Federated averaging: in each round every client trains a copy with its own loader."""
    add_loader(lines, chance, in_memory=False)
    add_evaluation(lines)
    batch = chance.choice((3, 4))
    lines.add("parts = random_split(data, [9, 12, len(data) - 21])")
    lines.add(f"loaders = [DataLoader(part, batch_size={batch}, shuffle=True) for part in parts]")
    lines.add(f"model = {network(6, 3)}")
    with lines.block("for _ in range(3):"):
        lines.add("states = []")
        with lines.block("for loader in loaders:"):
            lines.add("local = copy.deepcopy(model)")
            lines.add(f"optimizer = {optimizer_of(chance, 'local.parameters()')}")
            head = f"for epoch in range({chance.choice((1, 2))}):"
            with lines.block(head), lines.block("for inputs, targets in loader:"):
                add_classification(lines, "local")
            lines.add("states.append(local.state_dict())")
        lines.add("names = model.state_dict().keys()")
        lines.add("mean = {name: sum(state[name] for state in states) / len(states) for name in names}")
        lines.add("model.load_state_dict(mean)")
        evaluate(lines, "model")
    lines.add("record.end(model)")


def folds(lines: Lines, chance: random.Random) -> None:
    """Cross-validation: a new model and new loaders over subsets for each fold."""
    batch = add_loader(lines, chance, in_memory=False)
    add_evaluation(lines)
    with lines.block("for fold in range(3):"):
        lines.add("parts = [index for index in range(len(data)) if index % 3 != fold]")
        lines.add(f"loader = DataLoader(Subset(data, parts), batch_size={batch}, shuffle=True)")
        lines.add("parts = range(fold, len(data), 3)")
        lines.add(f"held_out = DataLoader(Subset(data, parts), batch_size={chance.choice((batch, 5))})")
        lines.add(f"model = {network(6, 3)}", f"optimizer = {optimizer_of(chance, 'model.parameters()')}")
        with lines.block(f"for epoch in range({chance.choice((1, 2))}):"):
            with lines.block("for inputs, targets in loader:"):
                add_classification(lines)
            evaluate(lines, "model")
    lines.add("record.end(model)")


def rate_finder(lines: Lines, chance: random.Random) -> None:
    """A search for the learning rate: a few steps with a rising one, then the weights from before."""
    add_loader(lines, chance)
    lines.add(f"model = {network(6, 3)}", f"optimizer = {optimizer_of(chance, 'model.parameters()')}")
    lines.add("before = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())")
    lines.add("rate = 0.00001")
    with lines.block("for inputs, targets in loader:"):
        lines.add("optimizer.param_groups[0]['lr'] = rate", "rate *= 4")
        add_classification(lines)
        lines.add("if rate > 0.01:", "    break")
    lines.add("model.load_state_dict(before[0])", "optimizer.load_state_dict(before[1])")
    with lines.block("for epoch in range(2):"), lines.block("for inputs, targets in loader:"):
        add_classification(lines)
    lines.add("record.end(model)")


def self_training(lines: Lines, chance: random.Random) -> None:
    """Rounds of training, each with the samples that the model of the round before was sure of."""
    batch = chance.choice((4, 8))
    lines.add("data = labeled = TensorDataset(torch.randn(18, 6), torch.randint(3, (18,)))")
    lines.add(
        f"others = DataLoader(TensorDataset(torch.randn(30, 6)), batch_size={chance.choice((4, 8, 30))})"
    )
    lines.add(f"model = {network(6, 3)}", f"optimizer = {optimizer_of(chance, 'model.parameters()')}")
    with lines.block("for _ in range(3):"):
        with lines.block(f"for inputs, targets in DataLoader(data, batch_size={batch}, shuffle=True):"):
            add_classification(lines)
        lines.add("model.eval()", "found = []")
        head = "with record.evaluation(), torch.no_grad():"
        with lines.block(head), lines.block("for (inputs,) in others:"):
            lines.add("shares, classes = model(inputs).softmax(1).max(1)", "sure = shares > 0.36")
            lines.add("found.append(TensorDataset(inputs[sure], classes[sure]))")
        lines.add("model.train()", "data = ConcatDataset([labeled, *found])")
    lines.add("record.end(model)")


def continual(lines: Lines, chance: random.Random) -> None:
    """Elastic weight consolidation: tasks one after the other, and the Fisher information after each."""
    # In training mode without a backward pass these calls may as well be of the next step.
    has_backward = chance.random() < 0.5
    is_eval = not has_backward or chance.random() < 0.5
    lines.add("sizes = 16, 18, 14")
    lines.add("tasks = [TensorDataset(torch.randn(size, 6), torch.randint(3, (size,))) for size in sizes]")
    lines.add(f"model = {network(6, 3)}", f"optimizer = {optimizer_of(chance, 'model.parameters()')}")
    lines.add("penalties = []")
    with lines.block("for task in tasks:"):
        lines.add("loader = DataLoader(task, batch_size=4, shuffle=True)")
        with lines.block("for epoch in range(2):"), lines.block("for inputs, targets in loader:"):
            lines.add("record.began()", "penalty = sum((one * (weight - old).square()).sum()")
            lines.add("    for one, weight, old in penalties)")
            add_update(lines, "F.cross_entropy(model(inputs), targets) + penalty")
        lines.add("sums = [torch.zeros_like(weight) for weight in model.parameters()]")
        lines.add(*(["model.eval()"] if is_eval else []))
        with lines.block("with record.evaluation():"), lines.block("for inputs, targets in loader:"):
            lines.add("model.zero_grad()", "loss = F.cross_entropy(model(inputs), targets)")
            if has_backward:
                lines.add("loss.backward()", "gradients = [weight.grad for weight in model.parameters()]")
            else:
                lines.add("gradients = torch.autograd.grad(loss, list(model.parameters()))")
            lines.add("for one, gradient in zip(sums, gradients):", "    one += gradient.square()")
        lines.add("model.zero_grad()", "model.train()")
        lines.add("olds = [weight.detach().clone() for weight in model.parameters()]")
        lines.add("penalties = list(zip(sums, model.parameters(), olds))")
    lines.add("record.end(model)")


def thawing(lines: Lines, chance: random.Random) -> None:
    """Fine-tuning: the head first, then the whole model."""
    add_loader(lines, chance)
    add_evaluation(lines)
    lines.add("body, head = nn.Linear(6, 8), nn.Linear(8, 3)", "model = nn.Sequential(body, nn.ReLU(), head)")
    lines.add("body.requires_grad_(False)", f"optimizer = {optimizer_of(chance, 'head.parameters()')}")
    with lines.block("for inputs, targets in loader:"):
        add_classification(lines)
    evaluate(lines, "model")
    lines.add("body.requires_grad_(True)")
    if chance.random() < 0.5:
        lines.add("optimizer.add_param_group({'params': body.parameters(), 'lr': 0.0001})")
    else:
        lines.add(f"optimizer = {optimizer_of(chance, 'model.parameters()')}")
    with lines.block("for epoch in range(2):"):
        with lines.block("for inputs, targets in loader:"):
            add_classification(lines)
        evaluate(lines, "model")
    lines.add("record.end(model)")


def average(lines: Lines, chance: random.Random) -> None:
    """Stochastic weight averaging, with the statistics of batch normalization computed once more."""
    batch = add_loader(lines, chance, in_memory=False)
    lines.add(f"loader = DataLoader(data, batch_size={batch}, drop_last=True)")
    lines.add("model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))")
    lines.add("mean = torch.optim.swa_utils.AveragedModel(model)")
    lines.add(f"optimizer = {optimizer_of(chance, 'model.parameters()')}")
    with lines.block("for epoch in range(3):"):
        with lines.block("for inputs, targets in loader:"):
            add_classification(lines)
        lines.add("mean.update_parameters(model)", "with record.evaluation():")
        lines.add("    torch.optim.swa_utils.update_bn(loader, mean)")
    lines.add("record.end(model, mean)")


def alternation(lines: Lines, chance: random.Random) -> None:
    """A loader and a head for each of several tasks, which take turns within each iteration or at random."""
    batch, is_random = chance.choice((4, 5)), chance.random() < 0.5
    lines.add(
        "parts = random_split(TensorDataset(torch.randn(64, 6), torch.randint(3, (64,))), [20, 26, 18])"
    )
    options = f"batch_size={batch}, shuffle=True, drop_last=True"
    lines.add(f"loaders = [DataLoader(part, {options}) for part in parts]", "body = nn.Linear(6, 8)")
    lines.add("heads = nn.ModuleList([nn.Linear(8, 3) for _ in loaders])")
    owner = "[*body.parameters(), *heads.parameters()]"
    lines.add(f"optimizer = {optimizer_of(chance, owner)}")
    loss = "F.cross_entropy(heads[task](body(inputs).relu()), targets)"
    if is_random:
        lines.add("passes = [iter(loader) for loader in loaders]")
        with lines.block("for _ in range(14):"):
            lines.add("task = int(torch.randint(3, ()))", "try:", "    inputs, targets = next(passes[task])")
            lines.add("except StopIteration:", "    passes[task] = iter(loaders[task])")
            lines.add("    inputs, targets = next(passes[task])", "record.began()")
            add_update(lines, loss)
    else:
        with lines.block("for epoch in range(3):"):
            lines.add("passes = [iter(loader) for loader in loaders]")
            with lines.block("for _ in range(3):"), lines.block("for task, batches in enumerate(passes):"):
                lines.add("inputs, targets = next(batches)", "record.began()")
                add_update(lines, loss)
    lines.add("record.end(body, heads)")


def retries(lines: Lines, chance: random.Random) -> None:
    """A pass that fails, as for lack of memory, is begun again with smaller batches."""
    add_loader(lines, chance, in_memory=False)
    lines.add(f"model = {network(6, 3)}", f"optimizer = {optimizer_of(chance, 'model.parameters()')}")
    lines.add("")
    head = "for index, (inputs, targets) in enumerate(DataLoader(data, batch_size=size)):"
    with lines.block("def train(size, limit):"), lines.block(head):
        lines.add("if index == limit:", "    raise MemoryError")
        add_classification(lines)
    lines.add("")
    with lines.block("for size, limit in ((8, None), (8, 2), (4, 5), (4, None), (2, None)):"):
        lines.add("try:", "    train(size, limit)", "except MemoryError:", "    pass")
    lines.add("record.end(model)")


TASK_FAMILIES = {
    "meta-learning": meta_learning,
    "copies": copies,
    "federation": federation,
    "folds": folds,
    "learning rate finder": rate_finder,
    "self-training": self_training,
    "continual learning": continual,
    "fine-tuning": thawing,
    "weight averaging": average,
    "alternation": alternation,
    "retries": retries,
}
