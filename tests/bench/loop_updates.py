"""The updates of random training loops, as lines of a script."""

from collections.abc import Callable

from tests.bench.loop_draws import Clearing, LoopDraw, Network, Precision, Skip, Source, Tail, Updates
from tests.bench.loop_parts import Lines

_RATES = {"SGD": "lr=0.05", "Adam": "lr=0.003", "AdamW": "lr=0.003", "RMSprop": "lr=0.002"}
_CLEARED = {Clearing.ZEROS: "optimizer.zero_grad(set_to_none=False)", Clearing.MODEL: "model.zero_grad()"}
Add = Callable[[Lines, LoopDraw], None]


def add_optimizers(lines: Lines, draw: LoopDraw) -> None:
    """Add the optimizers, and the schedule of the first one."""
    for name, owner in _owners(draw).items():
        if draw.updates is Updates.CLOSURE:
            lines.add(f"{name} = torch.optim.LBFGS({owner}, lr=0.1, max_iter=3)")
        else:
            lines.add(f"{name} = torch.optim.{draw.optimizer}({owner}, {_RATES[draw.optimizer]})")
    if draw.schedules:
        lines.add(f"scheduler = torch.optim.lr_scheduler.StepLR({next(iter(_owners(draw)))}, 10, 0.9)")


def _owners(draw: LoopDraw) -> dict[str, str]:
    """Return the names of the optimizers, and their parameters."""
    if draw.network is Network.GAN:
        return {"optimizer_d": "discriminator.parameters()", "optimizer_g": "generator.parameters()"}
    if draw.network is not Network.HEADS:
        return {"optimizer": "model.parameters()"}
    heads = "[*head_a.parameters(), *head_b.parameters()]"
    match draw.updates:
        case Updates.EACH:
            return {"optimizer": "encoder.parameters()", "optimizer_b": heads}
        case Updates.TURNS:
            return {
                "optimizer": "[*encoder.parameters(), *head_a.parameters()]",
                "optimizer_b": "[*encoder.parameters(), *head_b.parameters()]",
            }
    return {"optimizer": "[*encoder.parameters(), *head_a.parameters(), *head_b.parameters()]"}


def add_update(lines: Lines, draw: LoopDraw, add_rest: Add) -> None:
    """Add the lines that train on a batch; `add_rest` adds those that follow an update."""
    if draw.network is Network.GAN:
        _add_adversaries(lines, draw)
        add_rest(lines, draw)
    elif draw.updates is Updates.TURNS:
        _add_turns(lines)
        add_rest(lines, draw)
    elif draw.updates is Updates.CLOSURE:
        _add_closure(lines, draw)
        add_rest(lines, draw)
    else:
        _add_usual(lines, draw, add_rest)


def _add_adversaries(lines: Lines, draw: LoopDraw) -> None:
    lines.add("record.began()", "noise = torch.randn(len(inputs), 4)")
    critic = [
        "real, fake = discriminator(inputs), discriminator(generator(noise).detach())",
        "loss = F.softplus(-real).mean() + F.softplus(fake).mean()",
        "optimizer_d.zero_grad()",
        "loss.backward()",
        f"record.trained({_batch_size(draw)}, loss)",
        "optimizer_d.step()",
    ]
    if draw.source is Source.ZIP:
        critic[0] = critic[0].replace("(inputs)", "(torch.cat([inputs, others]))")
    generator = [
        "loss = F.softplus(-discriminator(generator(noise))).mean()",
        "optimizer_g.zero_grad()",
        "loss.backward()",
        "record.trained(0, loss)",
        "optimizer_g.step()",
    ]
    if draw.updates is Updates.TURNS:
        with lines.block("if index % 2:"):
            lines.add(*critic)
        with lines.block("else:"):
            lines.add(*(line.replace("(0, loss)", f"({_batch_size(draw)}, loss)") for line in generator))
        lines.add("record.updated()")
        return
    lines.add(*critic)
    if draw.updates is Updates.CRITIC:
        with lines.block(f"if index % 3 == {draw.seed % 3}:"):
            lines.add(*generator)
        # The update of the generator ends no step: it is at the end of this one, or the begin of the next.
        lines.add("record.updated(is_clear=False)")
        return
    # Without a loader the ends of the first two steps are not known yet.
    updated = "record.updated()" if draw.has_loader else "record.updated(is_clear=updates > 1)"
    lines.add(*generator, updated)


def _batch_size(draw: LoopDraw) -> str:
    return "len(inputs) + len(others)" if draw.source is Source.ZIP else "len(inputs)"


def _add_turns(lines: Lines) -> None:
    lines.add("record.began()")
    with lines.block("if index % 2:"):
        lines.add("loss, chosen = F.cross_entropy(head_a(encoder(inputs)), targets), optimizer")
    with lines.block("else:"):
        lines.add("loss, chosen = F.cross_entropy(head_b(encoder(inputs)), targets % 2), optimizer_b")
    lines.add("chosen.zero_grad()", "loss.backward()", "record.trained(len(inputs), loss)", "chosen.step()")
    lines.add("record.updated()")


def _add_closure(lines: Lines, draw: LoopDraw) -> None:
    lines.add("record.began()")
    if draw.network is Network.RNN:
        lines.add("hidden = None")
    lines.add("")
    with lines.block("def closure():"):
        lines.add("optimizer.zero_grad()")
        _add_loss(lines, draw, is_closure=True)
        lines.add("loss.backward()", "record.trained(0, loss)", "return loss")
    lines.add("", f"record.trained({_batch_size(draw)}, 0.0)", "optimizer.step(closure)", "record.updated()")


def _add_usual(lines: Lines, draw: LoopDraw, add_rest: Add) -> None:
    """Add a forward pass, a backward pass and, after enough micro-batches, the update."""
    is_tried = draw.skip in (Skip.ERROR, Skip.FORWARD_ERROR, Skip.LATE_ERROR)
    with lines.block_if("try:" if is_tried else ""):
        if draw.skip is Skip.ERROR:
            lines.add(f"if {draw.skipped}:", '    raise ValueError("a broken sample")')
        _add_gradients(lines, draw)
        _add_step(lines, draw, add_rest)
    if is_tried:
        with lines.block("except ValueError:"):
            if draw.skip is Skip.LATE_ERROR:
                lines.add("optimizer.zero_grad()", "record.dropped()")
            lines.add("record.skipped()", "continue")


def _add_gradients(lines: Lines, draw: LoopDraw) -> None:
    """Add a forward and a backward pass."""
    lines.add("record.began()")
    if draw.clearing in (Clearing.BEFORE, Clearing.MODEL):
        number = "count" if draw.tail is Tail.CARRY else "(index - 1)"
        is_due = f"if {number} % {draw.accumulation} == 0:" if draw.accumulation > 1 else ""
        with lines.block_if(is_due):
            _add_clearing(lines, draw)
    is_autocast = draw.precision in (Precision.AUTOCAST, Precision.SCALER)
    with lines.block_if('with torch.autocast("cpu", dtype=torch.bfloat16):' if is_autocast else ""):
        _add_loss(lines, draw)
    if draw.accumulation > 1:
        lines.add(f"loss = loss / {draw.accumulation}")
    if draw.skip is Skip.NAN:
        lines.add(f"if {draw.skipped}:", "    loss = loss * math.nan")
        lines.add("if not torch.isfinite(loss):", "    record.skipped()", "    continue")
    if draw.skip is Skip.FORWARD_ERROR:
        lines.add(f"if {draw.skipped}:", '    raise ValueError("the loss is too high")')
    if draw.clearing is Clearing.LATE:
        _add_clearing(lines, draw)
    lines.add("scaler.scale(loss).backward()" if _has_scaler(draw) else "loss.backward()")
    lines.add(f"record.trained({_batch_size(draw)}, loss)")
    _add_late_skip(lines, draw)
    if draw.logs:
        lines.add("total += loss.item()")


def _add_late_skip(lines: Lines, draw: LoopDraw) -> None:
    if draw.skip is Skip.LATE_ERROR:
        lines.add(f"if {draw.skipped}:", '    raise ValueError("the gradients are too high")')
    if draw.skip is Skip.NORM:
        lines.add(f"if {draw.skipped}:", "    optimizer.zero_grad()", "    record.dropped()")
        lines.add("    record.skipped()", "    continue")


def _add_clearing(lines: Lines, draw: LoopDraw) -> None:
    lines.add(_CLEARED.get(draw.clearing, "optimizer.zero_grad()"))
    if draw.updates is Updates.EACH:
        lines.add("optimizer_b.zero_grad()")


def _has_scaler(draw: LoopDraw) -> bool:
    return draw.precision in (Precision.SCALER, Precision.SCALER_OFF)


def _first(draw: LoopDraw) -> str:
    return "encoder" if draw.network is Network.HEADS else "model"


def _add_loss(lines: Lines, draw: LoopDraw, *, is_closure: bool = False) -> None:
    model = "compiled" if draw.compiles else "model"
    if draw.network is Network.HEADS:
        lines.add("features = encoder(inputs)")
        lines.add("loss = F.cross_entropy(head_a(features), targets)")
        lines.add("loss = loss + F.cross_entropy(head_b(features), targets % 2)")
        return
    if draw.has_penalty:
        lines.add("inputs.requires_grad_()")
    if draw.network is Network.RNN and is_closure:
        lines.add(f"outputs, _ = {model}(inputs, None)")
    elif draw.network is Network.RNN:
        lines.add("if hidden is not None and hidden.shape[1] != len(inputs):", "    hidden = None")
        lines.add(f"outputs, hidden = {model}(inputs, hidden)", "hidden = hidden.detach()")
    else:
        lines.add(f"outputs = {model}(inputs)")
    if draw.network is Network.TRANSFORMER:
        lines.add("loss = F.cross_entropy(outputs.flatten(0, 1), targets.flatten())")
    else:
        lines.add("loss = F.cross_entropy(outputs, targets)")
    if draw.calls > 1 and draw.network is not Network.RNN:
        second = "inputs.flip(1)" if draw.network is Network.TRANSFORMER else "0.9 * inputs"
        lines.add(f"loss = loss + 0.1 * ({model}({second}) - outputs).float().square().mean()")
    if draw.source is Source.ZIP:
        call = f"{model}(others, None)[0]" if draw.network is Network.RNN else f"{model}(others)"
        lines.add(f"loss = loss + 0.1 * {call}.float().square().mean()")
    if draw.has_penalty:
        lines.add("slope, = torch.autograd.grad(outputs.float().sum(), inputs, create_graph=True)")
        lines.add("loss = loss + 0.1 * slope.square().mean()")


def _add_step(lines: Lines, draw: LoopDraw, add_rest: Add) -> None:
    """Add the update, after enough micro-batches."""
    condition = ""
    lines.add("count += 1")
    if draw.accumulation > 1:
        condition = {
            Tail.CARRY: f"if count % {draw.accumulation} == 0:",
            Tail.FLUSH: f"if index % {draw.accumulation} == 0 or index == {draw.batches}:",
            Tail.DROP: f"if index % {draw.accumulation} == 0:",
        }[draw.tail]
    with lines.block_if(condition):
        if draw.clips:
            if _has_scaler(draw):
                lines.add("scaler.unscale_(optimizer)")
            lines.add(f"nn.utils.clip_grad_norm_({_first(draw)}.parameters(), 1.0)")
        if _has_scaler(draw):
            lines.add("scaler.step(optimizer)", "scaler.update()")
        else:
            lines.add("optimizer.step()")
        if draw.updates is Updates.EACH:
            lines.add("optimizer_b.step()")
        lines.add("record.updated()")
        if draw.clearing in (Clearing.AFTER, Clearing.ZEROS):
            _add_clearing(lines, draw)
        add_rest(lines, draw)
