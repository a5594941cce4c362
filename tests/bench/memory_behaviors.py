"""The behaviors of a script's memory: healthy ones, and leaks."""

from collections.abc import Callable

from harness.records.memory import LeakSeries
from tests.bench.memory_parts import Behavior, Plan

_NAMES = ("records", "history", "kept", "log_values", "past", "results", "trace", "bank", "seen_items", "buf")

HEALTHY: dict[str, Callable[[Plan], Behavior]] = {}
LEAKING: dict[str, Callable[[Plan], Behavior]] = {}


def _in(group: dict[str, Callable[[Plan], Behavior]]) -> Callable[..., Callable[[Plan], Behavior]]:
    def add(function: Callable[[Plan], Behavior]) -> Callable[[Plan], Behavior]:
        group[function.__name__.strip("_")] = function
        return function

    return add


def _name(plan: Plan) -> str:
    return plan.draw.choice(_NAMES)


@_in(HEALTHY)
def _plain(plan: Plan) -> Behavior:
    return Behavior("plain")


@_in(HEALTHY)
def _cache_that_fills(plan: Plan) -> Behavior:
    name, most = _name(plan), int(plan.steps * plan.draw.uniform(0.05, 0.3)) + 5
    return Behavior(
        "cache that fills",
        setup=f"{name} = {{}}",
        after_step=f"if updates % {most} not in {name}:\n"
        f"    {name}[updates % {most}] = torch.randn({plan.elements})",
    )


@_in(HEALTHY)
def _replay_buffer(plan: Plan) -> Behavior:
    name, most = _name(plan), int(plan.steps * plan.draw.uniform(0.02, 0.2)) + 5
    kind = plan.draw.choice((f"deque(maxlen={most})", "[]"))
    drop = "" if kind.startswith("d") else f"\nif len({name}) > {most}:\n    {name}.pop(0)"
    return Behavior(
        "replay buffer",
        setup=f"{name} = {kind}",
        after_step=f"{name}.append(torch.randn({plan.elements})){drop}",
    )


@_in(HEALTHY)
def _list_cleared_each_epoch(plan: Plan) -> Behavior:
    name = _name(plan)
    kept = plan.draw.choice(("loss", "outputs", f"torch.randn({plan.elements})"))
    clear = plan.draw.choice((f"{name}.clear()", f"{name} = []"))
    return Behavior(
        f"list of {kept} cleared each epoch",
        setup=f"{name} = []",
        after_step=f"{name}.append({kept})",
        after_epoch=f"mean = sum(value.detach().mean() for value in {name}) / max(len({name}), 1)\n{clear}",
    )


@_in(HEALTHY)
def _average_of_weights(plan: Plan) -> Behavior:
    return Behavior(
        "EMA copy",
        setup="average = copy.deepcopy(model)",
        after_step="with torch.no_grad():\n"
        "    for mean, weight in zip(average.parameters(), model.parameters()):\n"
        "        mean.lerp_(weight, 0.01)",
    )


@_in(HEALTHY)
def _warm_up(plan: Plan) -> Behavior:
    most = int(plan.steps * plan.draw.uniform(0.05, 0.25)) + 2
    return Behavior(
        "batches that grow at first",
        batch=f"share = min(1.0, 0.25 + updates / {most})\n"
        "x, y = x[: max(2, int(len(x) * share))], y[: max(2, int(len(y) * share))]",
    )


@_in(HEALTHY)
def _checkpointing(plan: Plan) -> Behavior:
    return Behavior("checkpointing", checkpoints=True)


@_in(HEALTHY)
def _growing_lengths(plan: Plan) -> Behavior:
    return Behavior("lengths that grow to the end", lengths=f"4 + updates * (LENGTH - 4) // {plan.steps}")


@_in(HEALTHY)
def _floats_of_losses(plan: Plan) -> Behavior:
    name = _name(plan)
    return Behavior("floats of losses", setup=f"{name} = []", after_step=f"{name}.append(loss.item())")


@_in(HEALTHY)
def _saved_in_memory(plan: Plan) -> Behavior:
    return Behavior(
        "checkpoint in memory each epoch",
        setup="best = None",
        after_epoch="best = {key: value.clone() for key, value in model.state_dict().items()}",
    )


@_in(LEAKING)
def _losses_with_graphs(plan: Plan) -> Behavior:
    name = _name(plan)
    return Behavior(
        "losses with graphs",
        LeakSeries.ALLOCATED,
        None,
        (name,),
        setup=f"{name} = []",
        after_loss=f"{name}.append(loss)  # retains",
    )


@_in(LEAKING)
def _outputs_retained(plan: Plan) -> Behavior:
    name = _name(plan)
    return Behavior(
        "outputs retained",
        LeakSeries.ALLOCATED,
        None,
        (name,),
        setup=f"{name} = []",
        after_loss=f"wide = outputs.mean() + torch.randn({plan.elements // plan.micro_batches})  # retains\n"
        f"{name}.append(wide)  # retains",
    )


@_in(LEAKING)
def _sum_of_losses(plan: Plan) -> Behavior:
    name = _name(plan)
    return Behavior(
        "sum of losses with graphs",
        LeakSeries.ALLOCATED,
        None,
        (name,),
        setup=f"{name} = 0",
        after_loss=f"{name} += loss  # retains",
    )


@_in(LEAKING)
def _retained_graphs(plan: Plan) -> Behavior:
    name = _name(plan)
    return Behavior(
        "graphs retained by retain_graph",
        LeakSeries.ALLOCATED,
        None,
        (name,),
        setup=f"{name} = []",
        after_loss=f"{name}.append(loss)  # retains",
        backward="loss.backward(retain_graph=True)",
    )


@_in(LEAKING)
def _gradient_penalties(plan: Plan) -> Behavior:
    name = _name(plan)
    return Behavior(
        "penalties of create_graph retained",
        LeakSeries.ALLOCATED,
        None,
        (name,),
        setup=f"{name} = []",
        after_loss="slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)\n"
        "penalty = sum(slope.square().sum() for slope in slopes)\n"
        f"{name}.append(penalty)  # retains\n"
        "loss = loss + 1e-4 * penalty",
    )


@_in(LEAKING)
def _dict_by_step(plan: Plan) -> Behavior:
    name = _name(plan)
    return Behavior(
        "dict keyed by step",
        LeakSeries.ALLOCATED,
        plan.step_bytes,
        (name,),
        setup=f"{name} = {{}}",
        after_step=f"{name}[updates] = torch.randn({plan.elements})  # retains",
    )


@_in(LEAKING)
def _gradients_stored(plan: Plan) -> Behavior:
    name = _name(plan)
    return Behavior(
        "gradients stored",
        LeakSeries.ALLOCATED,
        None,
        (name,),
        setup=f"{name} = []",
        after_step=f"{name}.append([weight.grad.clone() for weight in model.parameters()])  # retains",
    )


@_in(LEAKING)
def _attribute_of_module(plan: Plan) -> Behavior:
    name = _name(plan)
    return Behavior(
        "attribute of a module",
        LeakSeries.ALLOCATED,
        plan.step_bytes,
        (name,),
        setup=f"model.{name} = []",
        after_loss=f"model.{name}.append(torch.randn({plan.elements // plan.micro_batches}))  # retains",
    )


@_in(LEAKING)
def _closure(plan: Plan) -> Behavior:
    name = _name(plan)
    return Behavior(
        "closure",
        LeakSeries.ALLOCATED,
        plan.step_bytes,
        (name, "remember"),
        top=f"def recorder():\n    {name} = []\n\n    def remember(value):\n"
        f"        {name}.append(value)  # retains\n\n    return remember\n",
        setup="remember = recorder()",
        after_step=f"remember(torch.randn({plan.elements}))  # retains",
    )


@_in(LEAKING)
def _global_list(plan: Plan) -> Behavior:
    name = _name(plan).upper()
    return Behavior(
        "global list",
        LeakSeries.ALLOCATED,
        plan.step_bytes,
        (name,),
        top=f"{name} = []\n",
        after_step=f"{name}.append(torch.randn({plan.elements}))  # retains",
    )


@_in(LEAKING)
def _unbounded_deque(plan: Plan) -> Behavior:
    name = _name(plan)
    return Behavior(
        "deque without a limit",
        LeakSeries.ALLOCATED,
        plan.step_bytes,
        (name,),
        setup=f"{name} = deque()",
        after_step=f"{name}.appendleft(torch.randn({plan.elements}))  # retains",
    )


@_in(LEAKING)
def _numpy_arrays(plan: Plan) -> Behavior:
    name = _name(plan)
    return Behavior(
        "numpy arrays",
        LeakSeries.ALLOCATED,
        plan.step_bytes,
        (name,),
        top="import numpy as np\n",
        setup=f"{name} = []",
        after_step=f"{name}.append(np.ones({plan.elements}, dtype=np.float32))  # retains",
    )


@_in(LEAKING)
def _python_objects(plan: Plan) -> Behavior:
    name = _name(plan)
    count = max(64, min(plan.elements, 1 << 15) // 8)
    return Behavior(
        "Python objects",
        LeakSeries.HOST,
        None,
        (name,),
        LeakSeries.ALLOCATED,  # The inner lists are from malloc, their items are not.
        setup=f"{name} = []",
        after_step=f"{name}.append([(updates, number * 0.5) for number in range({count})])  # retains",
    )


@_in(LEAKING)
def _in_a_worker(plan: Plan) -> Behavior:
    # Each tensor has some 500 bytes beside its elements.
    elements = max(4096, plan.elements // (plan.batch_size * plan.micro_batches))
    return Behavior(
        "in a worker process",
        LeakSeries.WORKERS,
        4 * elements * plan.batch_size * plan.micro_batches,
        (),
        in_sample=f"self.past.append(torch.randn({elements}))  # retains",
    )


@_in(LEAKING)
def _optimizer_state(plan: Plan) -> Behavior:
    return Behavior(
        "growing optimizer state",
        LeakSeries.ALLOCATED,
        plan.step_bytes,
        ("optimizer", "model"),
        setup="first = next(model.parameters())",
        after_step=f'optimizer.state[first][f"copy_{{updates}}"] = torch.randn({plan.elements})  # retains',
    )


@_in(LEAKING)
def _forward_hook_that_appends(plan: Plan) -> Behavior:
    name = _name(plan)
    return Behavior(
        "forward hook that appends",
        LeakSeries.ALLOCATED,
        plan.step_bytes,
        (name, "model"),
        setup=f"{name} = []\n"
        "def note(module, inputs, result):\n"
        f"    {name}.append(torch.randn({plan.elements // plan.micro_batches}))  # retains\n"
        "model.register_forward_hook(note)",
    )


@_in(LEAKING)
def _parameter_groups(plan: Plan) -> Behavior:
    return Behavior(
        "parameter groups that are added",
        LeakSeries.ALLOCATED,
        plan.step_bytes,
        ("optimizer",),
        after_step=f"extra = nn.Parameter(torch.randn({plan.elements}))  # retains\n"
        'optimizer.add_param_group({"params": [extra]})',
    )


@_in(LEAKING)
def _concatenation(plan: Plan) -> Behavior:
    name = _name(plan)
    return Behavior(
        "tensor that is concatenated",
        LeakSeries.ALLOCATED,
        plan.step_bytes,
        (name,),
        setup=f"{name} = torch.empty(0)",
        after_step=f"{name} = torch.cat([{name}, torch.randn({plan.elements})])  # retains",
    )
