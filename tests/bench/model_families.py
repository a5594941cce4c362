"""Loops that train with several models at once, as lines of a script."""

import random

from tests.bench.family_parts import (
    add_average,
    add_classification,
    add_evaluation,
    add_loader,
    add_update,
    evaluate,
    network,
    optimizer_of,
)
from tests.bench.loop_parts import Lines


def critic(lines: Lines, chance: random.Random) -> None:
    """A GAN with several updates of the critic per batch."""
    count, noise = chance.choice((1, 2, 3, 5)), "generator(torch.randn(len(inputs), 4))"
    add_loader(lines, chance, in_memory=False)
    lines.add(f"generator, critic = {network(4, 6)}, {network(6, 1)}")
    optimizers = ["optimizer_c = {}", "optimizer_g = {}"]
    names = {"optimizer_c": "critic", "optimizer_g": "generator"}
    for name in chance.sample(sorted(names), len(optimizers)):
        lines.add(f"{name} = {optimizer_of(chance, f'{names[name]}.parameters()')}")
    has_gradients, joins = chance.random() < 0.5, chance.random() < 0.3
    with lines.block("for epoch in range(2):"), lines.block("for inputs, _ in loader:"):
        lines.add("record.began()")
        with lines.block(f"for index in range({count}):"):
            if has_gradients:
                lines.add(f"fake = {noise}.detach()")
            else:
                lines.add("with torch.no_grad():", f"    fake = {noise}")
            loss = "critic(fake).mean() - critic(inputs).mean()"
            if joins:
                lines.add("signs = torch.cat([-torch.ones(len(inputs)), torch.ones(len(inputs))])")
                loss = "(critic(torch.cat([inputs, fake]))[:, 0] * signs).mean()"
            add_update(lines, loss, "0 if index else len(inputs)", "optimizer_c", is_last=False)
        add_update(lines, f"-critic({noise}).mean()", "0", "optimizer_g")
    lines.add("record.end(generator, critic)")


def cycle(lines: Lines, chance: random.Random) -> None:
    """A cycle GAN: two loaders in parallel, two generators with one optimizer, and two critics."""
    batch = chance.choice((2, 4))
    lines.add("tensors = torch.randn(22, 6), torch.randn(18, 6)")
    options = f"batch_size={batch}, shuffle=True, drop_last=True"
    lines.add(f"one, other = (DataLoader(TensorDataset(tensor), {options}) for tensor in tensors)")
    lines.add(f"to_one, to_other = {network(6, 6)}, {network(6, 6)}")
    lines.add(f"of_one, of_other = {network(6, 1)}, {network(6, 1)}")
    owner = "[*to_one.parameters(), *to_other.parameters()]"
    lines.add(f"optimizer = {optimizer_of(chance, owner)}")
    is_joint = chance.random() < 0.5
    if is_joint:
        owner = "[*of_one.parameters(), *of_other.parameters()]"
        lines.add(f"optimizer_c = {optimizer_of(chance, owner)}")
    else:
        lines.add(f"optimizer_1 = {optimizer_of(chance, 'of_one.parameters()')}")
        lines.add(f"optimizer_2 = {optimizer_of(chance, 'of_other.parameters()')}")
    with lines.block("for epoch in range(2):"), lines.block("for (first,), (second,) in zip(one, other):"):
        lines.add("record.began()", "fake_second, fake_first = to_other(first), to_one(second)")
        loss = "-of_one(fake_first).mean() - of_other(fake_second).mean()"
        loss += " + (to_one(fake_second) - first).abs().mean()"
        add_update(lines, loss, "len(first) + len(second)", is_last=False)
        losses = [
            "of_one(fake_first.detach()).mean() - of_one(first).mean()",
            "of_other(fake_second.detach()).mean() - of_other(second).mean()",
        ]
        if is_joint:
            add_update(lines, " + ".join(losses), "0", "optimizer_c")
        else:
            add_update(lines, losses[0], "0", "optimizer_1", is_last=False)
            add_update(lines, losses[1], "0", "optimizer_2")
    lines.add("record.end(to_one, to_other, of_one, of_other)")


def distillation(lines: Lines, chance: random.Random) -> None:
    """A teacher is trained, then a student from its outputs."""
    add_loader(lines, chance)
    add_evaluation(lines)
    lines.add(f"teacher = {network(6, 3)}", f"optimizer = {optimizer_of(chance, 'teacher.parameters()')}")
    with lines.block("for inputs, targets in loader:"):
        add_classification(lines, "teacher")
    evaluate(lines, "teacher")
    lines.add("teacher.eval()")
    if chance.random() < 0.5:
        lines.add("teacher.requires_grad_(False)")
    lines.add(f"student = {network(6, 3, 5)}", f"optimizer = {optimizer_of(chance, 'student.parameters()')}")
    has_gradients = chance.random() < 0.4
    with lines.block("for epoch in range(2):"):
        with lines.block("for inputs, targets in loader:"):
            lines.add("record.began()")
            with lines.block_if("" if has_gradients else "with torch.no_grad():"):
                lines.add("hints = teacher(inputs).softmax(1)" + (".detach()" if has_gradients else ""))
            loss = "F.cross_entropy(outputs, targets) + F.cross_entropy(outputs, hints)"
            lines.add("outputs = student(inputs)")
            add_update(lines, loss, is_clear=False)
        evaluate(lines, "student")
    lines.add("record.end(teacher, student)")


def momentum_encoder(lines: Lines, chance: random.Random) -> None:
    """Contrastive learning with a momentum encoder, which is an average of the one that is trained."""
    add_loader(lines, chance)
    add_evaluation(lines)
    lines.add(f"model, head = {network(6, 8)}, nn.Linear(8, 8)", "target = copy.deepcopy(model)")
    owner = "[*model.parameters(), *head.parameters()]"
    lines.add(f"optimizer = {optimizer_of(chance, owner)}")
    is_first = chance.random() < 0.5
    with lines.block("for epoch in range(2):"):
        with lines.block("for inputs, _ in loader:"):
            lines.add("record.began()")
            if not is_first:
                lines.add("queries = head(model(inputs + 0.1 * torch.randn_like(inputs)))")
            lines.add("with torch.no_grad():", "    keys = target(inputs + 0.1 * torch.randn_like(inputs))")
            if is_first:
                lines.add("queries = head(model(inputs + 0.1 * torch.randn_like(inputs)))")
            add_update(lines, "-F.cosine_similarity(queries, keys).mean()", is_clear=False)
            add_average(lines, "target", "model")
        evaluate(lines, "model")
    lines.add("record.end(model, target)")


def mean_teacher(lines: Lines, chance: random.Random) -> None:
    """Labeled and unlabeled batches, and a teacher that is an average of the student."""
    sizes = chance.choice((4, 6)), chance.choice((4, 8))
    lines.add("data = TensorDataset(torch.randn(22, 6), torch.randint(3, (22,)))")
    lines.add(f"labeled = DataLoader(data, batch_size={sizes[0]}, shuffle=True, drop_last=True)")
    lines.add("more = TensorDataset(torch.randn(40, 6))")
    lines.add(f"unlabeled = DataLoader(more, batch_size={sizes[1]}, shuffle=True, drop_last=True)")
    lines.add(f"model = {network(6, 3)}", "teacher = copy.deepcopy(model)")
    lines.add(f"optimizer = {optimizer_of(chance, 'model.parameters()')}")
    joins = chance.random() < 0.5
    head = "for (inputs, targets), (others,) in zip(labeled, unlabeled):"
    with lines.block("for epoch in range(2):"), lines.block(head):
        lines.add("record.began()", "with torch.no_grad():", "    hints = teacher(others).softmax(1)")
        if joins:
            lines.add("outputs = model(torch.cat([inputs, others]))")
            lines.add("outputs, guesses = outputs[: len(inputs)], outputs[len(inputs) :]")
        else:
            lines.add("outputs, guesses = model(inputs), model(others)")
        loss = "F.cross_entropy(outputs, targets) + F.mse_loss(guesses.softmax(1), hints)"
        add_update(lines, loss, "len(inputs) + len(others)", is_clear=False)
        add_average(lines, "teacher", "model")
    lines.add("record.end(model, teacher)")


def ensemble(lines: Lines, chance: random.Random) -> None:
    """Several models, each with an optimizer of its own, learn from each batch."""
    add_loader(lines, chance, in_memory=False)
    lines.add(f"models = [{network(6, 3)} for _ in range({chance.choice((2, 3))})]")
    lines.add(f"optimizers = [{optimizer_of(chance, 'model.parameters()')} for model in models]")
    with lines.block("for epoch in range(2):"), lines.block("for inputs, targets in loader:"):
        lines.add("record.began()")
        with lines.block("for model, optimizer in zip(models, optimizers):"):
            loss, samples = "F.cross_entropy(model(inputs), targets)", "len(inputs) * (model is models[0])"
            add_update(lines, loss, samples, is_last=False)
        lines.add("record.updated()")
    lines.add("record.end(*models)")


def diffusion(lines: Lines, chance: random.Random) -> None:
    """A model of noise, which draws samples after each epoch, also by an average of its weights."""
    add_loader(lines, chance)
    lines.add(
        "",
        "class Noise(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        "        self.layer = nn.Linear(7, 6)",
        "",
        "    def forward(self, inputs, times):",
        "        return self.layer(torch.cat([inputs, times[:, None]], 1))",
        "",
        "model = Noise()",
        "average = copy.deepcopy(model)",
        f"optimizer = {optimizer_of(chance, 'model.parameters()')}",
    )
    drawn, count = chance.choice(("model", "average")), chance.choice((2, 4))
    with lines.block("for epoch in range(2):"):
        with lines.block("for inputs, _ in loader:"):
            lines.add("record.began()", "times, noise = torch.rand(len(inputs)), torch.randn_like(inputs)")
            add_update(lines, "F.mse_loss(model(inputs + noise * times[:, None], times), noise)")
            add_average(lines, "average", "model")
        with lines.block("with record.evaluation(), torch.no_grad():"):
            lines.add(f"images = torch.randn({count}, 6)", "for time in range(9, 0, -1):")
            lines.add(f"    images = images - 0.1 * {drawn}(images, torch.full(({count},), time / 10))")
    lines.add("record.end(model, average)")


def autoencoder(lines: Lines, chance: random.Random) -> None:
    """A variational autoencoder: its parts are called by methods of its own, and it draws samples."""
    # Without a loader a single call without gradients may compute a target.
    add_loader(lines, chance, in_memory=False)
    lines.add(
        "",
        "class Autoencoder(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        "        self.encoder, self.decoder = nn.Linear(6, 8), nn.Linear(4, 6)",
        "",
        "    def encode(self, inputs):",
        "        mean, spread = self.encoder(inputs).chunk(2, 1)",
        "        return mean + torch.randn_like(mean) * spread.exp(), mean",
        "",
        "    def decode(self, codes):",
        "        return self.decoder(codes)",
        "",
        "model = Autoencoder()",
        f"optimizer = {optimizer_of(chance, 'model.parameters()')}",
    )
    with lines.block("for epoch in range(2):"):
        with lines.block("for inputs, _ in loader:"):
            lines.add("record.began()", "codes, mean = model.encode(inputs)")
            add_update(lines, "F.mse_loss(model.decode(codes), inputs) + mean.square().mean()")
        with lines.block("with record.evaluation(), torch.no_grad():"):
            lines.add("model.decode(torch.randn(5, 4))")
    lines.add("record.end(model)")


MODEL_FAMILIES = {
    "critic": critic,
    "cycle": cycle,
    "distillation": distillation,
    "momentum encoder": momentum_encoder,
    "mean teacher": mean_teacher,
    "ensemble": ensemble,
    "diffusion": diffusion,
    "autoencoder": autoencoder,
}
