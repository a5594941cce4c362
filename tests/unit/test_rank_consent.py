"""A change of settings is in effect on all ranks or on none: real workloads, with a store in memory."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from torch._C._distributed_c10d import HashStore

from harness.errors import StepscopeError
from harness.ranks.consent import RankConsent
from harness.ranks.store import RankStore
from harness.records.ranks import RankPlace
from harness.watch.live_settings import LiveSettings
from tests.train_factories import FakeJournal, a_context, a_workload, raising


class Rank:
    """One rank's settings, and what it recorded."""

    def __init__(self, store: HashStore, rank: int, size: int, wait_s: float) -> None:
        self.journal, self.workload = FakeJournal(), a_workload()
        self.consent = RankConsent(RankStore(store, RankPlace(rank, rank, size, size)), wait_s)
        self.live = LiveSettings(a_context(journal=self.journal), self.workload, self.consent)

    def change(self, payload: str, command_id: str = "c1") -> str | None:
        """Apply a change; return the sentence of its rejection."""
        try:
            self.live.apply(payload, 5, command_id)
        except (StepscopeError, RuntimeError) as error:
            return str(error)
        return None

    @property
    def batch_size(self) -> int:
        return self.workload.settings.batch_size


@pytest.fixture
def ranks() -> Any:
    store = HashStore()
    ranks = [Rank(store, rank, 3, 30.0) for rank in range(3)]
    yield ranks
    for rank in ranks:
        rank.workload.close()


def together(ranks: Sequence[Rank], payload: str, command_id: str = "c1") -> list[str | None]:
    """Apply a change on all `ranks` at once."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(lambda rank: rank.change(payload, command_id), ranks))


def test_what_all_ranks_can_do_is_in_effect_on_all(ranks: list[Rank]) -> None:
    assert together(ranks, '{"batch_size": 4}') == [None] * 3
    assert [rank.batch_size for rank in ranks] == [4] * 3
    assert all(len(rank.journal.settings) == 1 for rank in ranks)


@pytest.mark.parametrize("fails", ["validate", "reconfigure"])
def test_what_one_rank_rejects_or_cannot_do_is_in_effect_on_none(ranks: list[Rank], fails: str) -> None:
    setattr(ranks[1].workload, fails, raising(RuntimeError("no room for it\nand more")))
    reasons = together(ranks, '{"batch_size": 4}')
    assert "no room" in (reasons[1] or "")
    other = "Rank 1 did not take it, so no rank has changed: It could not be applied: no room for it"
    assert (reasons[0], reasons[2]) == (other, other)
    assert [rank.batch_size for rank in ranks] == [8] * 3
    assert not any(rank.journal.settings or rank.journal.events for rank in ranks)


def test_a_rank_that_does_not_answer_leaves_all_as_they_were() -> None:
    store = HashStore()
    ranks = [Rank(store, rank, 3, 0.2) for rank in range(3)]
    reasons = together(ranks[:2], '{"batch_size": 4}')
    assert set(reasons) == {"Rank 2 did not take it, so no rank has changed: it has not answered."}
    assert "Rank 2 did not take it" in (ranks[2].change('{"batch_size": 4}') or "")  # Settled before.
    assert [rank.batch_size for rank in ranks] == [8] * 3
    assert together(ranks, '{"batch_size": 4}', "c2") == [None] * 3
    for rank in ranks:
        rank.workload.close()


def test_a_store_that_has_ended_changes_nothing() -> None:
    rank = Rank(HashStore(), 0, 2, 0.1)
    cast(Any, rank.consent)._store.report = raising(RuntimeError("Broken pipe"))
    assert rank.change('{"batch_size": 4}') == "The other ranks cannot be reached, so nothing has changed."
    assert rank.batch_size == 8
    rank.workload.close()
