"""Settings of a live script: learning rates, precision, cache, limits, and those that it does not have."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from harness.attach.ending import ScriptStopped
from harness.attach.learning_rates import LearningRateFactor
from harness.attach.loaders import LOADER_SETTINGS
from harness.attach.reasons import NO_OPTIMIZER, REASONS
from harness.attach.switches import STEP_SETTINGS, WATCH_SETTINGS
from harness.records.run import CommandKind, CommandState, RunState
from harness.settings.spec import SPECS
from tests.session_factories import Attached, a_session


class Script:
    """A model of one weight, whose gradient is 1 in every step."""

    def __init__(self, **options: Any) -> None:
        self.model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.model.weight)
        kind = options.pop("kind", torch.optim.SGD)
        self.optimizer: torch.optim.Optimizer = kind(self.model.parameters(), **{"lr": 0.5, **options})
        self.rates: list[Any] = []

    @property
    def weight(self) -> float:
        return self.model.weight.item()

    def loss(self) -> Tensor:
        loss: Tensor = self.model(torch.ones(1, 1)).sum()
        return loss

    def closure(self) -> float:
        return self.loss().item()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()
        self.rates.append(self.optimizer.param_groups[0]["lr"])

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()


@pytest.fixture(autouse=True)
def own_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def answered(home: Path, script: Script, **values: Any) -> tuple[CommandState, str, Attached]:
    with a_session(home) as attached:
        script.steps(2)
        request = attached.ask(**values)
        script.steps(3)
    answer = attached.answer(request)
    return CommandState(answer.state), answer.message, attached


def test_a_factor_multiplies_the_rate_within_steps_only(tmp_path: Path) -> None:
    script = Script()
    with a_session(tmp_path) as attached:
        script.steps(2)
        attached.ask(learning_rate_factor=0.1)
        script.steps(3)  # The first is still under the factor before.
    assert script.weight == pytest.approx(-(3 * 0.5 + 2 * 0.05))
    assert script.rates == [0.5] * 5


class Sharding(torch.optim.SGD):
    """An optimizer that has another one step, with copies of its own groups, as ZeroRedundancyOptimizer."""

    def __init__(self, parameters: Iterator[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.inner = torch.optim.SGD([dict(group) for group in self.param_groups])

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        for group, own in zip(self.param_groups, self.inner.param_groups, strict=True):
            own["lr"] = group["lr"]
        self.inner.step()


class OwnRate(torch.optim.SGD):
    """An optimizer that has another one step, which has a rate of its own."""

    def __init__(self, parameters: Iterator[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, lr=2 * lr)
        self.inner = torch.optim.SGD(self.param_groups[0]["params"], lr=lr)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        self.inner.step()


@pytest.mark.parametrize(("kind", "rate"), [(Sharding, 0.5), (OwnRate, 1.0)])
def test_an_optimizer_within_another_one_has_the_factor_once(
    tmp_path: Path, kind: type[torch.optim.Optimizer], rate: float
) -> None:
    script = Script(kind=kind)
    with a_session(tmp_path) as attached:
        script.steps(2)
        attached.ask(learning_rate_factor=0.1)
        script.steps(3)
    assert script.weight == pytest.approx(-(3 * 0.5 + 2 * 0.05))
    assert script.rates == [rate] * 5


def test_an_optimizer_has_the_factor_after_another_one_has_failed() -> None:
    weight = nn.Parameter(torch.ones(1))
    failing, other = (torch.optim.SGD([weight], lr=1.0) for _ in range(2))
    rates = LearningRateFactor()
    rates.factor = 0.5
    rates.update_began(failing)  # And raises.
    rates.update_began(other)
    assert other.param_groups[0]["lr"] == 0.5


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("place", ["script", "pre_hook", "post_hook"])
def test_a_scheduler_computes_with_its_own_rates(tmp_path: Path, place: str) -> None:
    script = Script()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(script.optimizer, gamma=0.5)
    if place != "script":
        getattr(script.optimizer, f"register_step_{place}")(lambda *_: scheduler.step())
    with a_session(tmp_path) as attached:
        for step in range(4):
            if step == 1:
                attached.ask(learning_rate_factor=2)
            script.step()
            if place == "script":
                scheduler.step()
    used = [0.5 ** (step + (2 if place == "pre_hook" else 1)) for step in range(4)]
    assert scheduler.get_last_lr() == [0.5**5]
    assert script.weight == pytest.approx(-(used[0] + used[1] + 2 * used[2] + 2 * used[3]))
    assert len(script.optimizer._optimizer_step_post_hooks) == (place == "post_hook")


class Decaying(torch.optim.SGD):
    """An optimizer with a rate that decays in each step."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        self.param_groups[0]["lr"] *= 0.75


@pytest.mark.parametrize("has_hook", [False, True])
@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_a_rate_that_decays_within_a_step_has_the_factor_once(factor: float, has_hook: bool) -> None:
    script, rates = Script(kind=Decaying), LearningRateFactor()
    rates.factor = factor
    if has_hook:
        script.optimizer.register_step_post_hook(lambda *_: None)
    for _ in range(3):
        rates.update_began(script.optimizer)
        script.step()
        rates.update_ended(script.optimizer)
    assert script.optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * 0.75**3)
    assert script.weight == pytest.approx(-factor * 0.5 * (1 + 0.75 + 0.75**2))


@pytest.mark.parametrize(
    "options",
    [
        {"kind": torch.optim.Adam, "fused": True},
        {"kind": torch.optim.Adam, "foreach": True},
        {"kind": torch.optim.Adam, "lr": torch.tensor(0.5)},
        {"kind": torch.optim.RMSprop},
        {"kind": torch.optim.LBFGS, "max_iter": 1},
    ],
    ids=["fused", "foreach", "tensor", "rmsprop", "lbfgs"],
)
def test_every_optimizer_of_torch_follows_the_factor(options: dict[str, Any]) -> None:
    moved = []
    for factor in (1.0, 0.5):
        script, rates = Script(**options), LearningRateFactor()
        rates.factor, before = factor, script.optimizer.param_groups[0]["lr"]
        script.loss().backward()
        rates.update_began(script.optimizer)
        script.optimizer.step(script.closure)
        rates.update_ended(script.optimizer)
        assert script.optimizer.param_groups[0]["lr"] is before
        moved.append(script.weight)
    assert moved[1] == pytest.approx(moved[0] / 2, rel=1e-4)


def test_an_optimizer_inside_another_one_is_scaled_once() -> None:
    script, rates = Script(), LearningRateFactor()
    outer = torch.optim.SGD(script.model.parameters(), lr=0.5)
    outer.param_groups = script.optimizer.param_groups
    rates.factor = 0.1
    rates.update_began(outer)
    rates.update_began(script.optimizer)
    assert script.optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    rates.update_ended(script.optimizer)
    assert script.optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    rates.update_ended(outer)
    assert script.optimizer.param_groups[0]["lr"] == 0.5


def test_a_step_that_failed_leaves_the_rate_to_the_next_one() -> None:
    script, rates = Script(), LearningRateFactor()
    rates.factor = 0.1
    for _ in range(3):
        rates.update_began(script.optimizer)
        assert script.optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    rates.restore()
    assert script.optimizer.param_groups[0]["lr"] == 0.5


def test_a_rate_that_the_script_sets_in_a_step_stays() -> None:
    script, rates = Script(), LearningRateFactor()
    rates.factor = 0.1
    rates.update_began(script.optimizer)
    script.optimizer.param_groups[0]["lr"] = 0.25
    rates.update_ended(script.optimizer)
    assert script.optimizer.param_groups[0]["lr"] == 0.25


class NoRate(torch.optim.SGD):
    """An optimizer that decides on its step size by itself."""

    def __init__(self, parameters: Iterator[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.param_groups[0]["lr"] = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure


@pytest.mark.parametrize("kind", [NoRate, torch.optim.Rprop])
def test_an_optimizer_without_a_rate_has_no_factor(tmp_path: Path, kind: type[torch.optim.Optimizer]) -> None:
    state, message, _ = answered(tmp_path, Script(kind=kind), learning_rate_factor=0.5)
    assert (state, "no learning rate" in message) == (CommandState.REJECTED, True)


def test_precision_begins_as_torch_has_it_and_returns_to_that(tmp_path: Path) -> None:
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = True  # As torch begins; other tests may have changed it.
    script, allowed = Script(), []
    with a_session(tmp_path) as attached:
        script.steps(2)
        for precision in ("highest", "medium"):
            attached.ask(matmul_precision=precision)
            script.steps(2)
            allowed.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
    assert [values["matmul_precision"] for values in attached.settings()] == ["medium", "highest", "medium"]
    assert allowed == [("highest", False), ("medium", True)]


def test_another_change_leaves_what_the_script_set_meanwhile(tmp_path: Path) -> None:
    script = Script()
    with a_session(tmp_path) as attached:
        script.steps(2)
        torch.set_float32_matmul_precision("high")
        attached.ask(learning_rate_factor=0.5)
        script.steps(2)
        assert torch.get_float32_matmul_precision() == "high"


def test_precision_set_by_both_interfaces_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> str:
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    state, message, attached = answered(tmp_path, Script(), matmul_precision="high")
    monkeypatch.undo()
    assert (state, "both of torch's interfaces" in message) == (CommandState.REJECTED, True)
    assert "matmul_precision" not in attached.settings()[0]


def test_every_setting_is_one_of_the_scripts_or_has_a_reason() -> None:
    offered = {*STEP_SETTINGS, *WATCH_SETTINGS, *LOADER_SETTINGS}
    assert offered.isdisjoint(REASONS)
    assert offered | set(REASONS) == set(SPECS)
    assert all(reason.endswith(".") for reason in REASONS.values())


def test_the_log_says_which_settings_a_script_lacks_and_which_it_has_by_now(tmp_path: Path) -> None:
    script, data = Script(), TensorDataset(torch.ones(8, 1))
    with a_session(tmp_path) as attached:
        for _ in DataLoader(data, batch_size=2):
            script.step()
    with attached.log() as log:
        reasons = log.script.unavailable_settings()
    assert "non_blocking" not in LOADER_SETTINGS
    assert set(reasons) == set(REASONS)
    assert reasons["compile"] == REASONS["compile"]


def test_the_log_says_why_a_script_without_a_loader_has_no_batch_size(tmp_path: Path) -> None:
    _, _, attached = answered(tmp_path, Script(), batch_size=4)
    with attached.log() as log:
        assert "DataLoader" in log.script.unavailable_settings()["batch_size"]


def test_without_an_optimizer_of_torch_there_is_no_learning_rate_to_scale(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    with a_session(tmp_path) as attached:
        for step in range(5):
            if step == 2:
                request = attached.ask(learning_rate_factor=0.5)
            model.zero_grad()
            model(torch.ones(3, 2)).sum().backward()
            with torch.no_grad():
                for weight in model.parameters():
                    assert weight.grad is not None
                    weight.sub_(weight.grad, alpha=0.1)
    answer = attached.answer(request)
    assert answer.state == CommandState.REJECTED
    assert answer.message.endswith(NO_OPTIMIZER)


def test_the_learning_rate_can_be_scaled_once_the_script_has_made_its_optimizer(tmp_path: Path) -> None:
    """After the first backward pass, as Pyro does."""
    model = nn.Linear(2, 1)
    optimizer: torch.optim.Optimizer | None = None
    with a_session(tmp_path) as attached:
        for step in range(6):
            if step == 3:
                request = attached.ask(learning_rate_factor=0.5)
            model(torch.ones(3, 2)).sum().backward()
            optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer.step()
            model.zero_grad()
    answer = attached.answer(request)
    assert answer.state == CommandState.APPLIED, answer.message
    with attached.log() as log:
        assert "learning_rate_factor" not in log.script.unavailable_settings()
        history = [json.loads(row.settings).get("learning_rate_factor") for row in log.settings_history()]
    assert history == [None, 1.0, 0.5]


@pytest.mark.parametrize("value", [4, SPECS["batch_size"].default])
def test_without_a_loader_no_batch_size_is_in_effect(tmp_path: Path, value: int) -> None:
    state, message, _ = answered(tmp_path, Script(), batch_size=value)
    assert state == CommandState.REJECTED
    assert "none has fed a step" in message


@pytest.mark.parametrize(
    ("name", "value"),
    [("compile", True), ("compile", False), ("grad_accumulation", 2), ("learning_rate", 0.1)],
)
def test_a_setting_of_the_catalog_is_refused_with_the_reason(tmp_path: Path, name: str, value: Any) -> None:
    state, message, attached = answered(tmp_path, Script(), **{name: value})
    assert (state, message) == (
        CommandState.REJECTED,
        f"{name} cannot change in this script. {REASONS[name]}",
    )
    assert name not in attached.settings()[0]


def test_the_cache_is_emptied_now_and_every_few_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emptied: list[int] = []
    script = Script()
    with a_session(tmp_path) as attached:
        script.steps(2)
        monkeypatch.setattr(
            "harness.device.cpu.device.CpuDevice.empty_cache",
            lambda _device: emptied.append(len(script.rates)),
        )
        now = attached.ask(CommandKind.EMPTY_CACHE)
        script.steps(1)
        assert emptied == [2]
        attached.ask(empty_cache_every=3)
        script.steps(7)
    assert emptied == [2, 5, 8]
    assert attached.answer(now).state == CommandState.APPLIED


def test_a_number_of_steps_stops_the_script_as_a_finished_run(tmp_path: Path) -> None:
    script = Script()
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(ScriptStopped, match="Took all 5 steps"))
        attached = stack.enter_context(a_session(tmp_path))
        script.steps(2)
        attached.ask(max_steps=5)
        script.steps(10)
    with attached.log() as log:
        assert (log.run().state, log.extent().last) == (RunState.FINISHED, 5)
    assert len(script.rates) == 4
