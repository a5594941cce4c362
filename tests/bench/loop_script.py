"""The script of a random training loop, as a person could have written it, with a record of the truth."""

from tests.bench.loop_draws import (
    Clearing,
    Ending,
    Evaluated,
    LoopDraw,
    Mode,
    Network,
    Precision,
    Second,
    Skip,
    Source,
    Tail,
    Times,
    Updates,
)
from tests.bench.loop_parts import (
    Lines,
    add_classes,
    add_data,
    batches_of_epoch,
    models_of,
    next_batch,
    prediction,
)
from tests.bench.loop_updates import add_optimizers, add_update

_SECOND = {
    Second.MODEL: (),
    Second.HEAD: (
        "for parameter in model.parameters():",
        "    parameter.requires_grad_(False)",
        "for parameter in model.head.parameters():",
        "    parameter.requires_grad_(True)",
    ),
    Second.COPY: ("model = copy.deepcopy(model)",),
}

_OF_DATA = (
    "BatchSampler",
    "ConcatDataset",
    "DataLoader",
    "IterableDataset",
    "RandomSampler",
    "Subset",
    "TensorDataset",
    "random_split",
)


def script_of(draw: LoopDraw) -> str:
    """Return the text of the script. Its argument is the path of the record."""
    lines = Lines()
    add_classes(lines, draw)
    lines.add("", "")
    with lines.block_if("def main():" if draw.is_function else ""):
        option = "" if draw.has_loader else ", has_loader=False"
        lines.add(f"torch.manual_seed({draw.seed})", f"record = Record(sys.argv[1]{option})")
        add_data(lines, draw)
        for name, value in models_of(draw.network).items():
            lines.add(f"{name} = {value}")
        _add_training(lines, draw)
        lines.add(f"record.end({_names(draw)})")
        if draw.ending is Ending.CODE:
            lines.add("sys.exit(3)")
        if draw.ending is Ending.ERROR:
            lines.add('raise ValueError("the last word")')
    if draw.is_function:
        lines.add("", "", 'if __name__ == "__main__":', "    main()")
    return f'"""{draw.words}."""\n\n{imports_of(lines.text)}\n{lines.text}'


def imports_of(text: str) -> str:
    """Return the imports that the rest of a script uses."""
    modules = [f"import {name}\n" for name in ("copy", "io", "math", "sys") if f"{name}." in text]
    of_data = ", ".join(name for name in _OF_DATA if f"{name}(" in text or f"({name})" in text)
    imports = "\nimport torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
    if of_data:
        imports += f"from torch.utils.data import {of_data}\n"
    return "".join(modules) + imports + "\nfrom loop_record import Record\n"


def _names(draw: LoopDraw) -> str:
    return ", ".join(models_of(draw.network))


def _called(draw: LoopDraw) -> str:
    """Return the name of the model that is called. What torch.compile has wrapped is not followed."""
    return "compiled" if draw.compiles else next(iter(models_of(draw.network)))


def _add_training(lines: Lines, draw: LoopDraw) -> None:
    add_optimizers(lines, draw)
    if draw.precision in (Precision.SCALER, Precision.SCALER_OFF):
        enabled = draw.precision is Precision.SCALER
        lines.add(f'scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled={enabled})')
    if draw.compiles:
        lines.add('compiled = torch.compile(model, backend="eager")')
    if draw.evaluated is Evaluated.AVERAGE and draw.times is not Times.NEVER:
        lines.add("average = copy.deepcopy(model)")
    if draw.times is not Times.NEVER:
        _add_evaluate(lines, draw)
    if draw.peeks:
        lines.add("print(next(iter(loader))[0].shape)")
    lines.add("updates = count = 0", "total = 0.0")
    if draw.network is Network.RNN:
        lines.add("hidden = None")
    if draw.times is Times.BEFORE:
        _evaluate(lines, draw)
    _add_loop(lines, draw)
    if draw.second is not Second.NONE:
        lines.add("")
        lines.add(*_SECOND[draw.second])
        lines.add("model.zero_grad()", "record.dropped()")
        again = draw._replace(
            epochs=1,
            updates=Updates.ONE,
            optimizer="Adam",
            times=Times.NEVER,
            skip=Skip.NEVER,
            breaks="",
            schedules=False,
            samples_between=False,
            saves=False,
        )
        owner = "model.head" if draw.second is Second.HEAD else "model"
        lines.add(f"optimizer = torch.optim.Adam({owner}.parameters(), lr=0.002)")
        _add_loop(lines, again)


def _add_loop(lines: Lines, draw: LoopDraw) -> None:
    if draw.is_endless:
        lines.add("batches = cycle(loader)" if draw.source is Source.CYCLE else "batches = iter(loader)")
        with lines.block(f"for index in range(1, {draw.batches * draw.epochs + 1}):"):
            next_batch(lines, draw)
            _add_body(lines, draw)
        return
    with lines.block(f"for epoch in range({draw.epochs}):"):
        with batches_of_epoch(lines, draw):
            _add_body(lines, draw)
        if draw.tail is Tail.DROP and draw.accumulation > 1:
            if draw.clearing in (Clearing.AFTER, Clearing.ZEROS):
                lines.add("optimizer.zero_grad()")
            lines.add("record.dropped()")
        if draw.times in (Times.EPOCH, Times.BEFORE):
            _evaluate(lines, draw)
        if draw.saves:
            _add_save(lines, draw)
        if draw.logs:
            lines.add('print(f"epoch {epoch}: loss {total / max(count, 1):.4f}")')


def _add_save(lines: Lines, draw: LoopDraw) -> None:
    name = next(iter(models_of(draw.network)))
    lines.add("buffer = io.BytesIO()", f"torch.save({name}.state_dict(), buffer)", "buffer.seek(0)")
    lines.add(f"{name}.load_state_dict(torch.load(buffer))")


def _add_body(lines: Lines, draw: LoopDraw) -> None:
    """Add the lines of an iteration, for a batch that was loaded."""
    if draw.breaks == "before the call":
        lines.add(f"if epoch == 0 and index == {max(3, draw.batches // 2)}:", "    break")
    if draw.skip is Skip.BEFORE:
        lines.add(f"if {draw.skipped}:", "    continue")
    add_update(lines, draw, _after_update)
    if draw.breaks == "after the update":
        lines.add(f"if index == {max(3, draw.batches - 2)}:", "    break")


def _after_update(lines: Lines, draw: LoopDraw) -> None:
    """Add what follows an update."""
    lines.add("updates += 1")
    if draw.schedules:
        lines.add("scheduler.step()")
    if draw.evaluated is Evaluated.AVERAGE and draw.times is not Times.NEVER:
        lines.add("with torch.no_grad():")
        lines.add("    for mean, weight in zip(average.parameters(), model.parameters()):")
        lines.add("        mean.lerp_(weight, 0.1)")
    if draw.times is Times.MIDDLE:
        with lines.block("if updates % 4 == 0:"):
            _evaluate(lines, draw)
    if draw.samples_between:
        with lines.block("if updates % 5 == 0:"):
            _add_samples(lines, draw)


def _add_samples(lines: Lines, draw: LoopDraw) -> None:
    """Add a few calls that draw samples between two steps."""
    with lines.block("with record.evaluation(), torch.no_grad():"):
        if draw.network is Network.GAN:
            lines.add("generator.eval()")
            lines.add("images = [generator(torch.randn(3, 4)) for _ in range(4)]", "generator.train()")
            return
        lines.add(f"network = {_called(draw)}", "network.eval()")
        call = "network(inputs[:1])" if draw.network is Network.HEADS else prediction(draw.network)
        call = call.replace("(inputs", "(inputs[:1]") if draw.network is not Network.HEADS else call
        lines.add(f"drawn = [{call} for _ in range(4)]", "network.train()")


def _add_evaluate(lines: Lines, draw: LoopDraw) -> None:
    """Add the function that evaluates."""
    names = models_of(draw.network)
    lines.add("")
    with lines.block("def evaluate(network):"):
        is_eval = draw.mode in (Mode.NO_GRAD, Mode.INFERENCE, Mode.EVAL)
        modes = ["network"] if len(names) == 1 else list(names)
        if is_eval:
            lines.add(*(f"{name}.eval()" for name in modes))
        context = {
            Mode.NO_GRAD: "with torch.no_grad():",
            Mode.NO_GRAD_ALONE: "with torch.no_grad():",
            Mode.INFERENCE: "with torch.inference_mode():",
        }.get(draw.mode, "")
        with lines.block_if(context), lines.block("for inputs, *_ in held_out:"):
            lines.add(prediction(draw.network))
        if is_eval:
            lines.add(*(f"{name}.train()" for name in modes))
    lines.add("")


def _evaluate(lines: Lines, draw: LoopDraw) -> None:
    name = "average" if draw.evaluated is Evaluated.AVERAGE else _called(draw)
    lines.add("with record.evaluation():", f"    evaluate({name})")
