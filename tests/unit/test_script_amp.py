"""Mixed precision of a script, switched while it runs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.data import DataLoader, TensorDataset

from harness.attach.autocast import ScriptAutocast, in_float32
from harness.records.run import AmpMode, CommandState
from tests.session_factories import Attached, a_session


class Net(nn.Module):
    """Notes the data type of what it computes."""

    def __init__(self, region: Callable[[], Any] | None = None, *, checkpoints: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
        self.region, self.checkpoints = region, checkpoints
        self.dtypes: list[torch.dtype] = []

    def forward(self, inputs: Tensor) -> Tensor:
        if self.region is None:
            return self.compute(inputs)
        with self.region():
            return self.compute(inputs)

    def compute(self, inputs: Tensor) -> Tensor:
        hidden = (
            checkpoint(self.hidden, inputs, use_reentrant=False) if self.checkpoints else self.hidden(inputs)
        )
        output: Tensor = self.head(hidden)
        return output

    def hidden(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.body(inputs)
        self.dtypes.append(hidden.dtype)
        return hidden


class Script:
    """A training loop; `around` is the region around a step's forward pass and loss."""

    def __init__(self, model: Callable[[Tensor], Tensor], weights: nn.Module, **options: Any) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(weights.parameters(), lr=0.1)
        self.around: Callable[[], Any] | None = options.get("around")
        self.scaler: torch.amp.GradScaler | None = options.get("scaler")
        self.outputs: list[torch.dtype] = []
        self.losses: list[float] = []
        self.inputs = torch.linspace(-1, 1, 32).reshape(8, 4)

    def forward(self) -> Tensor:
        output = self.model(self.inputs)
        self.outputs.append(output.dtype)
        return output.float().square().mean()

    def step(self) -> None:
        self.optimizer.zero_grad()
        if self.around is None:
            loss = self.forward()
        else:
            with self.around():
                loss = self.forward()
        self.losses.append(loss.item())
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()


def bf16() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def train(home: Path, script: Script, *modes: str) -> tuple[Attached, list[str]]:
    """Two steps under the script's own mode and under each of `modes`; also the ids of the requests."""
    with a_session(home) as attached:
        script.steps(2)
        requests = []
        for mode in modes:
            requests.append(attached.ask(amp=mode))
            script.steps(3)  # It takes effect before the second.
    return attached, requests


F32, B16 = torch.float32, torch.bfloat16


def test_a_model_without_autocast_runs_in_bf16_and_returns_float32(tmp_path: Path) -> None:
    net = Net()
    attached, (on, off) = train(tmp_path, script := Script(net, net), "bf16", "off")
    assert net.dtypes == [F32] * 3 + [B16] * 3 + [F32] * 2
    assert set(script.outputs) == {F32}
    assert [attached.answer(one).state for one in (on, off)] == [CommandState.APPLIED] * 2
    assert [values["amp"] for values in attached.settings()] == ["off", "bf16", "off"]


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_mode_that_is_requested_before_the_first_step_is_in_effect_in_it(
    tmp_path: Path, micro_batches: int
) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    outputs = []
    with a_session(tmp_path) as attached:
        request = attached.ask(amp="bf16")
        for _ in range(2):
            for _ in range(micro_batches):
                outputs.append(net(torch.ones(8, 4)))
                outputs[-1].mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert attached.answer(request).step == 1
    assert net.dtypes == [B16] * 2 * micro_batches
    assert {output.dtype for output in outputs} == {F32}


def test_an_autocast_around_the_step_is_taken_over(tmp_path: Path) -> None:
    net = Net()
    attached, _ = train(tmp_path, script := Script(net, net, around=bf16), "off", "bf16")
    assert net.dtypes == [B16] * 3 + [F32] * 3 + [B16] * 2
    assert script.outputs == net.dtypes
    assert [values["amp"] for values in attached.settings()] == ["bf16", "off", "bf16"]


def test_an_autocast_around_several_steps_is_as_the_script_entered_it(tmp_path: Path) -> None:
    net, requests = Net(), []
    script = Script(net, net)
    with a_session(tmp_path) as attached:
        for mode in ("off", "bf16"):
            with bf16():
                script.step()
                requests.append(attached.ask(amp=mode))
                script.steps(2)
        script.around = bf16
        script.step()
    assert net.dtypes == [B16] * 3 + [F32] * 3 + [B16]
    assert all("takes effect in the next one" in attached.answer(one).message for one in requests)


def test_an_autocast_inside_the_model_is_taken_over_once_it_was_entered(tmp_path: Path) -> None:
    net = Net(region=bf16)
    attached, _ = train(tmp_path, Script(net, net), "off")
    assert net.dtypes == [B16] * 3 + [F32] * 2
    assert [values["amp"] for values in attached.settings()] == ["off", "bf16", "off"]
    assert any("own autocast" in event.message for event in attached.events())


def test_a_decorated_forward_is_taken_over(tmp_path: Path) -> None:
    net = Net()
    net.forward = bf16()(net.forward)  # type: ignore[method-assign]
    train(tmp_path, Script(net, net), "off")
    assert net.dtypes == [B16] * 3 + [F32] * 2


def test_a_region_that_the_script_disables_stays_disabled(tmp_path: Path) -> None:
    net = Net(region=lambda: torch.autocast("cpu", enabled=False))
    train(tmp_path, Script(net, net), "bf16")
    assert net.dtypes == [F32] * 5


def test_checkpointed_activations_are_computed_again_as_they_were(tmp_path: Path) -> None:
    net = Net(checkpoints=True)
    with set_checkpoint_early_stop(False):
        train(tmp_path, Script(net, net), "bf16", "off")
    assert net.dtypes == [F32] * 6 + [B16] * 6 + [F32] * 4


def test_a_root_model_inside_another_one_returns_what_the_outer_one_needs(tmp_path: Path) -> None:
    inner = Net()

    class Outer(nn.Module):
        """Calls a model that is not its child."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Linear(1, 1)
            self.seen: list[torch.dtype] = []

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = inner(inputs)
            self.seen.append(hidden.dtype)
            output: Tensor = self.scale(hidden)
            return output

    outer = Outer()
    train(tmp_path, script := Script(outer, nn.ModuleList([inner, outer])), "bf16")
    assert outer.seen == [F32] * 3 + [B16] * 2
    assert set(script.outputs) == {F32}


@pytest.mark.slow
@pytest.mark.parametrize("mode", [AmpMode.BF16, AmpMode.OFF])
def test_a_compiled_model_follows_the_switch(mode: AmpMode) -> None:
    ran: list[torch.dtype] = []

    def backend(graph: Callable[..., Any], _inputs: object) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            outputs = graph(*inputs)
            ran.append(outputs[0].dtype)
            return outputs

        return run

    torch.compiler.reset()
    model, autocast = torch.compile(nn.Linear(4, 1), backend=backend), ScriptAutocast("cpu")
    inputs = torch.ones(1, 4)
    outputs = [autocast.run_forward(lambda: model(inputs))]
    autocast.apply(mode)
    outputs.append(autocast.run_forward(lambda: model(inputs)))
    assert ran == [F32, F32 if mode is AmpMode.OFF else B16]
    assert [output.dtype for output in outputs] == [F32, F32]


def test_fp16_needs_a_gradscaler(tmp_path: Path) -> None:
    net = Net()
    attached, (request,) = train(tmp_path, Script(net, net), "fp16")
    answer = attached.answer(request)
    assert answer.state == CommandState.REJECTED
    assert "fp16" in answer.message
    assert set(net.dtypes) == {F32}


def test_bf16_is_refused_where_the_processor_has_no_lstm_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.attach.switches.has_bf16_lstm", lambda: False)
    net = Net()
    attached, (request,) = train(tmp_path, Script(net, net), "bf16")
    assert attached.answer(request).state == CommandState.APPLIED
    net.lstm = nn.LSTM(4, 4)
    attached, (request,) = train(tmp_path, Script(net, net), "bf16")
    answer = attached.answer(request)
    assert answer.state == CommandState.REJECTED
    assert "LSTM" in answer.message


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_mixed_precision_is_refused_where_no_weight_is_in_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    net = Net().to(dtype)
    script = Script(net, net)
    script.inputs = script.inputs.to(dtype)
    attached, (request,) = train(tmp_path, script, "bf16")
    answer = attached.answer(request)
    assert answer.state == CommandState.REJECTED
    assert answer.message.endswith(f"all weights are in {str(dtype).removeprefix('torch.')}.")
    assert set(script.outputs) == {dtype}


class OnGpus(nn.DataParallel[nn.Module]):
    """DataParallel of a model over so many GPUs, which is called on the CPU."""

    def __init__(self, module: nn.Module, count: int) -> None:
        super().__init__(module)
        self.device_ids = list(range(count))

    def forward(self, inputs: Tensor) -> Any:
        return self.module(inputs)


@pytest.mark.parametrize(("gpus", "state"), [(1, CommandState.APPLIED), (2, CommandState.REJECTED)])
def test_bf16_is_refused_where_replicas_would_compute_in_fp16(
    tmp_path: Path, gpus: int, state: CommandState
) -> None:
    net = Net()
    model = OnGpus(net, gpus)
    attached, (request,) = train(tmp_path, Script(model, model), "bf16")
    answer = attached.answer(request)
    assert answer.state == state
    assert ("DataParallel" in answer.message) is (gpus > 1)


@pytest.mark.parametrize("around", [None, bf16])
def test_losses_fall_whatever_is_switched_under_a_gradscaler(
    tmp_path: Path, around: Callable[[], Any] | None
) -> None:
    net = Net()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    script = Script(net, net, around=around, scaler=scaler)
    train(tmp_path, script, "bf16", "off", "bf16")
    plain = Script(other := Net(), other)
    plain.steps(len(script.losses))
    assert script.losses == pytest.approx(plain.losses, rel=0.05)
    assert scaler.get_scale() == 1024.0


def test_losses_are_bit_identical_after_a_return_to_the_scripts_mode(tmp_path: Path) -> None:
    net, other = Net(), Net()
    script, plain = Script(net, net, around=bf16), Script(other, other, around=bf16)
    plain.steps(4)
    with a_session(tmp_path):
        script.steps(4)
    assert script.losses == plain.losses


def test_a_region_for_another_device_is_left_alone() -> None:
    autocast = ScriptAutocast("cuda")
    region = torch.autocast("cpu", dtype=torch.bfloat16)
    with region:
        autocast.forward_began(is_training=True)
        assert autocast.region_entered(region) is None
    assert autocast.own_mode is AmpMode.OFF


def test_an_output_of_any_structure_is_in_float32() -> None:
    half, whole, number = torch.ones(1, dtype=B16), torch.ones(1), torch.ones(1, dtype=torch.int64)
    output = in_float32({"a": half, "b": [whole, (half, number)], "c": None})
    assert output["a"].dtype == output["b"][1][0].dtype == F32
    assert output["b"][0] is whole
    assert output["b"][1][1] is number
    assert output["c"] is None


@pytest.fixture
def _autocast_is_reset() -> Iterator[None]:
    yield
    torch.set_autocast_enabled("cpu", False)


@pytest.mark.slow
@pytest.mark.usefixtures("_autocast_is_reset")
def test_autocast_that_is_enabled_without_a_region_is_noticed_amid_plain_steps(tmp_path: Path) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with a_session(tmp_path) as attached:
        for number, (inputs,) in enumerate(DataLoader(TensorDataset(torch.zeros(3_000, 4)))):
            if number == 40:
                torch.set_autocast_enabled("cpu", True)
            optimizer.zero_grad()
            net(inputs).float().square().mean().backward()
            optimizer.step()
    assert net.dtypes == [F32] * 40 + [B16] * 2_960
    assert [values["amp"] for values in attached.settings()] == ["off", "bf16"]
    (event,) = (event for event in attached.events() if "own autocast" in event.message)
    assert event.step > 40
