"""The order of a tune's comparisons follows from the results so far."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from harness.analysis.effect.measured import Word
from harness.errors import UsageError
from harness.records.measurement import BLOCK, LEAST_PAIRS, SWITCH
from harness.records.run import AmpMode, DeviceKind
from harness.settings.resolve import resolve
from harness.settings.spec import SPECS
from harness.tune.candidates import batches, candidates, is_live
from harness.tune.planning import (
    check_plan,
    check_result,
    combination,
    estimated_s,
    next_comparison,
    unmeasured,
)
from harness.tune.rows import Comparison, Goal, TrialOutcome, TrialStage
from harness.watch.measured_blocks import BLOCK_NS, BLOCK_STEPS, DISCARDED_NS, DISCARDED_STEPS
from tests.tune_factories import CPU, a_trial, a_tune, completed

GPU = CPU._replace(
    kind=DeviceKind.CUDA,
    ordinal=0,
    amp_modes=tuple(AmpMode),
    can_compile=True,
    can_pin=True,
    capability=(9, 0),
)


def nothing_helps(changes: Mapping[str, Any]) -> tuple[float, float]:
    return 1.0, 1.0


def bf16_and_workers_help(changes: Mapping[str, Any]) -> tuple[float, float]:
    """bf16 halves the time, two workers save a tenth of it; a foreach optimizer only helps without bf16."""
    time = 1.0
    if changes.get("amp") == "bf16":
        time *= 0.5
    elif changes.get("optimizer_impl") == "foreach":
        time *= 0.8
    if changes.get("num_workers") == 2:
        time *= 0.9
    return time, 1.0


def larger_batches_help(changes: Mapping[str, Any]) -> tuple[float, float]:
    size = changes.get("batch_size", 32)
    return (1.0 if size == 32 else 0.7 if size == 64 else 0.5), size / 32


def test_candidates_differ_from_the_baseline_in_values_that_the_device_has() -> None:
    names = [name for changes in candidates(a_tune().baseline, CPU) for name in changes]
    assert "amp" in names
    assert not {"compile", "pin_memory", "cudnn_benchmark", "flush_denormal", "batch_size"} & set(names)


def test_live_settings_come_before_those_that_need_another_process() -> None:
    baseline = resolve({"model": "mlp", "device": "cpu", "flush_denormal": False})
    lives = [is_live(changes) for changes in candidates(baseline, CPU)]
    assert lives == sorted(lives, reverse=True)
    assert lives[-1] is False


def test_pinned_memory_is_compared_with_copies_that_do_not_wait() -> None:
    baseline = resolve({"model": "mlp", "device": "cuda:0"})
    assert {"pin_memory": True, "non_blocking": True} in candidates(baseline, GPU)


def test_generated_samples_have_no_loader_to_tune() -> None:
    baseline = resolve({"model": "mlp", "data": "synthetic", "device": "cpu"})
    assert not [one for one in candidates(baseline, CPU) if "num_workers" in one]


def test_every_trial_value_is_a_value_of_its_setting() -> None:
    for spec in SPECS.values():
        for value in spec.trial_values:
            resolve({"model": "cnn", spec.name: value})


def test_batches_double_up_to_the_safe_part_of_the_largest() -> None:
    sizes = [changes["batch_size"] for changes in batches(a_tune().baseline, 600)]
    assert sizes == [64, 128, 256, 512]
    assert [changes["batch_size"] for changes in batches(a_tune().baseline, 570)] == [64, 128, 256, 512]
    assert [changes["batch_size"] for changes in batches(a_tune().baseline, 568)] == [64, 128, 256]


def test_doubling_ends_when_a_larger_batch_gains_nothing() -> None:
    tune = completed(a_tune(largest_batch=5_000), larger_batches_help)
    sizes = [trial.changes["batch_size"] for trial in tune.trials if "batch_size" in trial.changes]
    assert sizes == [64, 128, 256]
    assert combination(tune).changes == {"batch_size": 128}


def test_small_gains_of_a_larger_batch_wait_for_the_other_settings() -> None:
    tune = completed(a_tune(largest_batch=5_000), lambda changes: (0.95 ** (_doublings(changes)), 1.0))
    order = [next(iter(trial.changes)) for trial in tune.trials if trial.stage is TrialStage.SINGLE]
    assert order.count("batch_size") == 7
    assert set(order[-6:]) == {"batch_size"}
    assert not unmeasured(tune)


def _doublings(changes: Mapping[str, Any]) -> float:
    return math.log2(changes.get("batch_size", 32) / 32)


def test_memory_that_runs_out_ends_the_doubling_and_not_the_tune() -> None:
    tune = completed(a_tune(largest_batch=5_000), larger_batches_help, oom_batch=128)
    outcomes = {t.changes["batch_size"]: t.outcome for t in tune.trials if "batch_size" in t.changes}
    assert outcomes == {64: TrialOutcome.MEASURED, 128: TrialOutcome.OUT_OF_MEMORY}
    assert combination(tune).changes == {"batch_size": 64}
    assert not unmeasured(tune)


def test_without_any_gain_the_baseline_stays_and_nothing_is_combined() -> None:
    tune = completed(a_tune(), nothing_helps)
    assert combination(tune).changes == {}
    assert {trial.stage for trial in tune.trials} == {TrialStage.SINGLE}


def test_settings_are_adopted_only_if_they_help_on_top_of_the_others() -> None:
    tune = completed(a_tune(), bf16_and_workers_help)
    assert combination(tune).changes == {"amp": "bf16", "num_workers": 2}
    forward = [dict(trial.changes) for trial in tune.trials if trial.stage is TrialStage.FORWARD]
    assert forward == [{"optimizer_impl": "foreach"}, {"num_workers": 2}]


def test_the_combination_is_compared_with_the_baseline_and_without_each_part() -> None:
    tune = completed(a_tune(), bf16_and_workers_help)
    last = [(trial.stage, dict(trial.context), dict(trial.changes)) for trial in tune.trials[-2:]]
    assert last == [
        (TrialStage.DROP, {"num_workers": 2}, {"amp": "bf16"}),
        (TrialStage.TOTAL, {}, {"amp": "bf16", "num_workers": 2}),
    ]


def test_a_combination_that_is_not_confirmed_leaves_the_best_setting_alone() -> None:
    tune = completed(a_tune(), bf16_and_workers_help)
    total = tune.trials[-1]
    slower = a_trial(next_comparison(a_tune()) or total, 1.2)._replace(  # type: ignore[arg-type]
        stage=TrialStage.TOTAL, context={}, changes=total.changes
    )
    assert combination(tune._replace(trials=(*tune.trials[:-1], slower))).changes == {"amp": "bf16"}


def test_an_inconclusive_setting_is_compared_again_with_the_pairs_that_its_noise_requires() -> None:
    tune = a_tune()
    while (comparison := next_comparison(tune)) is not None and comparison.pairs == LEAST_PAIRS:
        trial = a_trial(comparison)
        if comparison.changes == {"amp": "bf16"}:
            trial = a_trial(comparison, 0.97, word=Word.INCONCLUSIVE, more_pairs=30)
        tune = tune._replace(trials=(*tune.trials, trial))
    assert comparison is not None
    assert (comparison.changes, comparison.pairs) == ({"amp": "bf16"}, 38)
    tune = tune._replace(trials=(*tune.trials, a_trial(comparison, 0.97)))
    assert combination(tune).changes == {"amp": "bf16"}


def test_a_comparison_that_does_not_fit_the_budget_is_left_out() -> None:
    tune = a_tune(budget_s=60.0)
    done = completed(tune, nothing_helps)
    assert done.trials
    assert done.spent_s <= 60.0
    assert unmeasured(done)


def test_slow_steps_and_large_batches_make_comparisons_longer() -> None:
    comparison = next_comparison(a_tune())
    assert comparison is not None
    assert estimated_s(a_tune(step_s=1.0), comparison) > 10 * estimated_s(a_tune(step_s=0.001), comparison)


def test_a_gpu_is_compared_with_the_cpu_in_fresh_processes() -> None:
    settings = resolve({"model": "mlp", "device": "cuda:0"}).model_dump(mode="json")
    tune = completed(a_tune(GPU, settings=settings), nothing_helps)
    device = [trial for trial in tune.trials if trial.stage is TrialStage.DEVICE]
    assert [(dict(trial.changes), trial.is_fresh) for trial in device] == [({"device": "cpu"}, True)]


def test_for_memory_the_lowest_peak_wins() -> None:
    def machine(changes: Mapping[str, Any]) -> tuple[float, float]:
        return (1.3, 0.6) if changes.get("activation_checkpointing") else (1.0, 1.0)

    tune = completed(a_tune(goal=Goal.MEMORY), machine)
    assert combination(tune).changes == {"activation_checkpointing": True}


def test_a_budget_too_short_for_one_comparison_is_refused_with_the_least_one() -> None:
    tune = a_tune(budget_s=60.0, spent_s=10.0, step_s=2.0)
    with pytest.raises(UsageError, match=r"a step of the baseline takes 2\.00 s, so") as error:
        check_plan(tune)
    least_s = float(str(error.value).partition("--budget ")[2].partition("s")[0])
    check_plan(tune._replace(budget_s=least_s))
    with pytest.raises(UsageError):
        check_plan(tune._replace(budget_s=0.85 * least_s))


def test_combinations_fit_a_budget_when_larger_batches_do_not_take_longer_per_step() -> None:
    def slow_loader(changes: Mapping[str, Any]) -> tuple[float, float]:
        return 32 / changes.get("batch_size", 32) / (1 + changes.get("num_workers", 0)), 1.0

    selected = ("num_workers", "batch_size")
    tune = completed(a_tune(largest_batch=2_000, budget_s=300.0, selected=selected), slow_loader)
    assert combination(tune).changes == {"batch_size": 1024, "num_workers": 4}
    assert tune.spent_s < tune.budget_s


def test_a_doubling_that_takes_long_comes_after_the_other_settings() -> None:
    def larger_is_a_little_better(changes: Mapping[str, Any]) -> tuple[float, float]:
        batch = 0.8 ** math.log2(changes.get("batch_size", 32) / 32)
        return batch / (1 + 0.5 * changes.get("num_workers", 0)), 1.0

    selected = ("num_workers", "batch_size")
    tune = completed(
        a_tune(largest_batch=20_000, budget_s=300.0, selected=selected), larger_is_a_little_better
    )
    changes = [trial.changes for trial in tune.trials if trial.stage is TrialStage.SINGLE]
    doublings = [at for at, change in enumerate(changes) if "batch_size" in change]
    workers = [at for at, change in enumerate(changes) if "num_workers" in change]
    assert [changes[at]["num_workers"] for at in workers] == [1, 2, 4]
    assert doublings[0] < workers[1]
    assert doublings[-1] > workers[-1]
    assert set(combination(tune).changes) == {"batch_size", "num_workers"}


def test_a_confirmed_combination_stands_until_a_later_setting_is_combined() -> None:
    def machine(changes: Mapping[str, Any]) -> tuple[float, float]:
        time, peak = bf16_and_workers_help(changes)
        return time * (0.8 if changes.get("num_workers") == 4 else 1.0), peak

    tune = completed(a_tune(selected=("amp", "num_workers")), bf16_and_workers_help)
    assert combination(tune).changes == {"amp": "bf16", "num_workers": 2}
    later = Comparison(TrialStage.SINGLE, {}, {"num_workers": 4}, LEAST_PAIRS)
    tune = tune._replace(trials=(*tune.trials, a_trial(later, 0.8)))
    assert combination(tune).changes == {"amp": "bf16", "num_workers": 2}
    assert next_comparison(tune) == later._replace(stage=TrialStage.FORWARD, context={"amp": "bf16"})
    assert combination(completed(tune, machine)).changes == {"amp": "bf16", "num_workers": 4}


def test_only_selected_settings_are_compared() -> None:
    tune = completed(a_tune(selected=("amp", "batch_size")), nothing_helps)
    assert {name for trial in tune.trials for name in trial.changes} == {"amp", "batch_size"}
    assert unmeasured(tune) == []
    settings = resolve({"model": "mlp", "device": "cuda:0"}).model_dump(mode="json")
    of_device = completed(a_tune(GPU, settings=settings, selected=("device",)), nothing_helps)
    assert [trial.stage for trial in of_device.trials] == [TrialStage.DEVICE]


def test_a_selection_without_another_value_on_this_device_is_refused() -> None:
    with pytest.raises(UsageError, match="There is nothing to compare: mlp on a CPU has no other value of"):
        check_plan(a_tune(selected=("pin_memory",)))


def test_a_budget_that_ended_before_a_comparison_says_in_which_part() -> None:
    spent = a_tune(budget_s=20.0, spent_s=20.5)
    with pytest.raises(
        UsageError, match=r"too short: the first comparison was not completed\. Give --budget 80s"
    ):
        check_result(spent)
    with pytest.raises(UsageError, match="the baseline did not reach its steady state"):
        check_result(spent._replace(device=None))
    check_result(completed(a_tune(), nothing_helps))


def test_estimates_assume_the_blocks_of_the_training_process() -> None:
    assert (BLOCK_STEPS, BLOCK_NS / 1e9) == BLOCK
    assert (DISCARDED_STEPS, DISCARDED_NS / 1e9) == SWITCH
