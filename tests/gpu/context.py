"""The surroundings of one stage of `make gpu-check`: its device, its time, and where its results go."""

import time
from collections.abc import Callable, Iterable, Iterator

from tests.gpu.journal import ResultsFile


class Context:
    """Given to every stage.

    Attributes:
        device: a device by its selector; "cuda", or "cpu" to test the stage itself.
        seed: for whatever is drawn at random.
        is_quick: few and small cases, for a test of the stage itself.
        path: the file of the results.
        folder: for files that are results too.
        done: the items that are not measured again.
        has_time: False once the stage left items out because its time was over.
    """

    def __init__(
        self,
        key: str,
        results: ResultsFile,
        device: str = "cuda",
        seed: int = 0,
        seconds: float = 60.0,
        is_quick: bool = False,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.device = device
        self.seed = seed
        self.is_quick = is_quick
        self.path, self.folder = results.path, results.path.parent
        self.has_time = True
        self._key = key
        self._results = results
        self._clock_s = clock_s
        self._end_s = clock_s() + seconds
        self.done = results.read().stage(key).done

    @property
    def left_s(self) -> float:
        """The time that the stage has left."""
        return self._end_s - self._clock_s()

    def pending(self, items: Iterable[str]) -> Iterator[str]:
        """Those of the items that an earlier call did not measure, until the time is over. What happens until
        the next one is asked for belongs to the item."""
        for item in items:
            if item in self.done:
                continue
            if self.left_s <= 0:
                self.has_time = False
                return
            self._results.begin(self._key, item)
            yield item

    def open_items(self) -> list[str]:
        """The items that began and did not end, in any process."""
        return self._results.read().stage(self._key).open_items

    def fail(self, item: str, reason: str) -> None:
        """Keep that an item ended its process, which is not this one."""
        self._results.failure(self._key, item, reason)
        self.done.add(item)

    def put(self, item: str, value: object) -> None:
        """Keep an item's result: anything that JSON can hold."""
        self._results.value(self._key, item, value)
        self.done.add(item)
