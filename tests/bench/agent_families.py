"""Loops of agents that act in an environment and learn from it, as lines of a script."""

import random

from tests.bench.family_parts import add_average, add_update, network, optimizer_of
from tests.bench.loop_parts import Lines


def replay(lines: Lines, chance: random.Random) -> None:
    """A deep Q-network: it acts, and learns from a replay buffer and a target network."""
    batch, every = chance.choice((8, 16)), chance.choice((1, 1, 2, 4))
    call = chance.choice(("model(state[None]).argmax(1).item()", "model(state).argmax().item()"))
    lines.add(f"model = {network(4, 2)}", "target = copy.deepcopy(model)")
    lines.add(f"optimizer = {optimizer_of(chance, 'model.parameters()')}")
    lines.add("memory = []", "state = torch.randn(4)")
    with lines.block("for number in range(45):"):
        with lines.block("if torch.rand(()) < 0.3:"):
            lines.add("action = int(torch.randint(2, ()))")
        with lines.block("else:"):
            lines.add("with torch.no_grad():", f"    action = {call}")
        lines.add("after = torch.randn(4)", "memory.append((state, action, after))", "state = after")
        with lines.block(f"if len(memory) >= {batch} and number % {every} == 0:"):
            lines.add(f"chosen = [memory[index] for index in torch.randperm(len(memory))[:{batch}]]")
            lines.add("states, actions, others = zip(*chosen)")
            lines.add("with torch.no_grad():")
            lines.add("    wanted = 1 + 0.9 * target(torch.stack(others)).amax(1)")
            lines.add("values = model(torch.stack(states))")
            lines.add("values = values.gather(1, torch.tensor(actions)[:, None])[:, 0]")
            add_update(lines, "F.smooth_l1_loss(values, wanted)", str(batch), is_clear=False)
            add_average(lines, "target", "model")
    lines.add("record.end(model, target)")


def policy_gradient(lines: Lines, chance: random.Random) -> None:
    """REINFORCE: an update per episode, with the actions of all of its steps."""
    state = chance.choice(("state", "state[None]"))
    lines.add(f"model = {network(4, 2)}", f"optimizer = {optimizer_of(chance, 'model.parameters()')}")
    with lines.block("for _ in range(9):"):
        lines.add("chosen, state = [], torch.randn(4)")
        with lines.block(f"for _ in range(int(torch.randint(3, {chance.choice((6, 12))}, ()))):"):
            lines.add(f"actions = torch.distributions.Categorical(logits=model({state}))")
            lines.add("chosen.append(actions.log_prob(actions.sample()).sum())", "state = torch.randn(4)")
        lines.add("returns = torch.rand(len(chosen)).cumsum(0)")
        add_update(lines, "-(torch.stack(chosen) * (returns - 0.5)).sum()", "None", is_clear=False)
    lines.add("record.end(model)")


def proximal_policy(lines: Lines, chance: random.Random) -> None:
    """PPO: rollouts without gradients, then a few passes over these in small batches."""
    count, steps, batch = chance.choice((1, 4, 8)), chance.choice((8, 16)), chance.choice((4, 8))
    has_loader = chance.random() < 0.4
    lines.add(
        "",
        "class Agent(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        "        self.body, self.policy, self.value = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 1)",
        "",
        "    def forward(self, states):",
        "        features = self.body(states).tanh()",
        "        return self.policy(features), self.value(features)[:, 0]",
        "",
        "    def act(self, states):",
        "        logits, values = self(states)",
        "        return torch.distributions.Categorical(logits=logits).sample(), values",
        "",
        "model = Agent()",
        f"optimizer = {optimizer_of(chance, 'model.parameters()')}",
    )
    with lines.block("for _ in range(3):"):
        lines.add("states, actions = [], []")
        with lines.block(f"for _ in range({steps}):"):
            lines.add(f"states.append(torch.randn({count}, 4))")
            lines.add("with torch.no_grad():", "    actions.append(model.act(states[-1])[0])")
        lines.add("order = torch.randperm(len(states) * len(states[0]))")
        lines.add("states, actions = torch.cat(states)[order], torch.cat(actions)[order]")
        with lines.block(f"for _ in range({chance.choice((1, 2, 4))}):"):
            if has_loader:
                lines.add("pairs = TensorDataset(states, actions)")
            source = f"DataLoader(pairs, batch_size={batch}, shuffle=True)"
            if not has_loader:
                source = f"zip(states.split({batch}), actions.split({batch}))"
            with lines.block(f"for some, chosen in {source}:"):
                lines.add("logits, values = model(some)")
                loss = "F.cross_entropy(logits, chosen) + (values - 1).square().mean()"
                add_update(lines, loss, "len(some)", is_clear=False)
    lines.add("record.end(model)")


def actor_and_critic(lines: Lines, chance: random.Random) -> None:
    """An actor and a critic that learn from the same states with one optimizer."""
    count = chance.choice((1, 5))
    lines.add(f"actor, critic = {network(4, 2)}, {network(4, 1)}")
    owner = "[*actor.parameters(), *critic.parameters()]"
    lines.add(f"optimizer = {optimizer_of(chance, owner)}")
    with lines.block("for _ in range(12):"):
        lines.add("record.began()", f"states = torch.randn({count}, 4)")
        lines.add(
            "actions = torch.distributions.Categorical(logits=actor(states))", "values = critic(states)"
        )
        lines.add("with torch.no_grad():")
        lines.add(f"    gain = 1 + 0.9 * critic(torch.randn({count}, 4)) - values")
        loss = "(values - 1).square().mean() - (actions.log_prob(actions.sample()) * gain[:, 0]).mean()"
        add_update(lines, loss, str(count), is_clear=False)
    lines.add("record.end(actor, critic)")


def soft_actor_critic(lines: Lines, chance: random.Random) -> None:
    """SAC: two critics with one optimizer, an actor, and at times a temperature, each with its own."""
    batch, has_temperature = chance.choice((8, 16)), chance.random() < 0.5
    lines.add(f"actor, one, two = {network(4, 2)}, {network(6, 1)}, {network(6, 1)}")
    lines.add("targets = copy.deepcopy(one), copy.deepcopy(two)")
    lines.add(f"optimizer_a = {optimizer_of(chance, 'actor.parameters()')}")
    lines.add(f"optimizer_c = {optimizer_of(chance, '[*one.parameters(), *two.parameters()]')}")
    lines.add("temperature = torch.zeros(1, requires_grad=True)")
    lines.add("optimizer_t = torch.optim.Adam([temperature], lr=0.001)", "memory = []")
    with lines.block("for _ in range(38):"):
        lines.add("state = torch.randn(4)", "with torch.no_grad():")
        lines.add("    memory.append(torch.cat([state, actor(state)]))")
        with lines.block(f"if len(memory) > {batch}:"):
            lines.add(f"pairs = torch.stack(memory)[torch.randperm(len(memory))[:{batch}]]")
            lines.add("states = pairs[:, :4]", "with torch.no_grad():")
            lines.add("    after = torch.cat([states, actor(states)], 1)")
            lines.add("    wanted = 1 + 0.9 * torch.minimum(*(target(after) for target in targets))")
            loss = "F.mse_loss(one(pairs), wanted) + F.mse_loss(two(pairs), wanted)"
            add_update(lines, loss, str(batch), "optimizer_c", is_last=False)
            loss = "-one(torch.cat([states, actor(states)], 1)).mean() * temperature.detach().exp()[0]"
            add_update(lines, loss, "0", "optimizer_a", is_last=False)
            if has_temperature:
                add_update(lines, "(temperature * 0.1).sum()", "0", "optimizer_t", is_last=False)
            lines.add("record.updated(is_clear=False)")
            add_average(lines, "targets[0]", "one")
            add_average(lines, "targets[1]", "two")
    lines.add("record.end(actor, one, two)")


AGENT_FAMILIES = {
    "replay buffer": replay,
    "policy gradient": policy_gradient,
    "proximal policy": proximal_policy,
    "actor and critic": actor_and_critic,
    "soft actor-critic": soft_actor_critic,
}
