"""The rest of an epoch whose batches were drawn ahead of their delivery, as workers do."""

from collections import deque
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from harness.attach.indices import Epoch
from tests.examples import examples

ROUNDS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 7), st.integers(1, 5), st.booleans()), max_size=6
)


class DrawingAhead:
    """Batches of an epoch, `ahead` of which are drawn before they are delivered."""

    def __init__(self, epoch: Epoch, ahead: int) -> None:
        self.epoch = epoch
        self.drawn: deque[list[int]] = deque()
        self._batches = epoch.batches()
        self._ahead = ahead
        self.draw()

    def draw(self) -> None:
        self.drawn.extend(islice(self._batches, self._ahead - len(self.drawn)))

    def deliver(self) -> list[int]:
        batch = self.drawn.popleft() if self.drawn else []
        self.draw()
        return batch


@examples(5)
@given(st.integers(0, 50), st.integers(1, 7), st.integers(1, 5), st.booleans(), ROUNDS)
def test_what_was_drawn_and_not_delivered_comes_again_in_its_order(
    count: int, size: int, ahead: int, drop_last: bool, rounds: list[tuple[int, int, int, bool]]
) -> None:
    epoch = Epoch(iter(range(count)), size, drop_last=drop_last, most_sent=ahead + 1)
    loading, samples = DrawingAhead(epoch, ahead), []
    for deliveries, new_size, new_ahead, fails in rounds:
        for _ in range(deliveries):
            samples += loading.deliver()
        undelivered = len(loading.drawn)
        assert loading.epoch.delivered(undelivered) == len(samples)
        following = DrawingAhead(loading.epoch.go_on(new_size, undelivered, new_ahead + 1), new_ahead)
        if fails:
            loading.epoch.take_back(following.epoch, undelivered)
        else:
            loading, size = following, new_size
    while batch := loading.deliver():
        assert len(batch) == size or (not drop_last and len(samples) + len(batch) == count)
        samples += batch
    assert samples == list(range(len(samples)))
    assert count - len(samples) < (size if drop_last else 1)
