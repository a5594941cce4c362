"""The sizes of a script's batches and of its models' inputs, by their shapes."""

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from harness.attach.batches import batch_axis, samples_of, sizes_of, tokens_of


@pytest.mark.parametrize(
    ("batch", "samples", "tokens"),
    [
        (torch.zeros(4, 3), 4, None),
        ((torch.zeros(4, 7, dtype=torch.long), torch.zeros(4)), 4, 28),
        (torch.zeros(4, 1, dtype=torch.long), 4, None),
        ({"id": "x", "input_ids": torch.zeros(2, 5, dtype=torch.long)}, 2, 10),
        ([["a", "b"], torch.zeros(6, 1)], 6, None),
        ("text", None, None),
        (torch.tensor(1.0), None, None),
        (None, None, None),
    ],
)
def test_sizes_of_batches_of_any_structure(batch: object, samples: int | None, tokens: int | None) -> None:
    assert (samples_of(batch), tokens_of(batch)) == (samples, tokens)


@pytest.mark.parametrize(
    ("inputs", "sizes"),
    [
        ((torch.zeros(1, 6, 5), torch.zeros(6, 3, 7)), (6, None)),
        ((torch.zeros(2, 6, 5), torch.zeros(6, 9, dtype=torch.long)), (6, 54)),
        ((torch.zeros(4, 9, 5), torch.zeros(9, 9)), (4, None)),
        ((torch.zeros(4, 9, 5), torch.zeros(9, 9, dtype=torch.long)), (4, None)),
        ((torch.zeros(4, 9, 5), torch.zeros(9, 5)), (4, None)),
        ((torch.zeros(4, 9, 5), torch.zeros(4, 9, 5)), (4, None)),
        ((torch.zeros(4, 9, 5), None), (4, None)),
        ((torch.zeros(9, 1, dtype=torch.long), torch.zeros(2, 1, 5)), (1, 9)),
        ((torch.zeros(9, 1, dtype=torch.long), torch.zeros(9, 30, 5)), (9, None)),
    ],
    ids=[
        "state",
        "state and ids",
        "mask",
        "mask of integers",
        "positions",
        "two batches",
        "nothing",
        "one sequence",
        "category",
    ],
)
def test_a_hidden_state_before_the_batch_is_not_counted(
    inputs: tuple[object, ...], sizes: tuple[int | None, int | None]
) -> None:
    assert sizes_of(inputs) == sizes


@pytest.mark.parametrize(
    ("inputs", "samples"),
    [
        ((torch.zeros(35, 8, dtype=torch.long), (torch.zeros(1, 8, 5), torch.zeros(1, 8, 5))), 8),
        ((torch.zeros(35, 8, dtype=torch.long), torch.zeros(2, 8, 5)), 8),
        ((torch.zeros(35, 8, 3), torch.zeros(2, 8, 5)), 8),
        ((torch.zeros(35, 8, 3), torch.zeros(1, 8, 5)), 8),
        ((torch.zeros(8, 35, dtype=torch.long), torch.zeros(2, 8, 5)), 8),
        ((torch.zeros(35, 8, dtype=torch.long), torch.zeros(1, 8, 5)), 8),
        ((torch.zeros(4, 9, 5), torch.zeros(1, 9, 5)), 4),
        ((torch.zeros(4, 9, dtype=torch.long), torch.zeros(2, 9, 9)), 4),
        ((torch.zeros(4, 9, dtype=torch.long), torch.zeros(4, 9, 5)), 4),
        ((torch.zeros(35, 8, dtype=torch.long), torch.arange(35, 27, -1)), 8),
        ((torch.zeros(35, 8, 3), torch.arange(35, 27, -1)), 8),
        ((torch.zeros(8, 35, dtype=torch.long), torch.arange(35, 27, -1)), 8),
        ((torch.zeros(4, 9, dtype=torch.long), torch.arange(9)), 4),
        ((torch.zeros(4, 9, dtype=torch.long), torch.ones(9)), 4),
        ((torch.zeros(4, 9, dtype=torch.long), torch.ones(9, dtype=torch.long, device="meta")), 4),
        ((torch.zeros(8, 35), torch.arange(35, 0, -1)), 8),
        ((torch.zeros(35, 8, dtype=torch.long), torch.zeros(35, 35)), 8),
        ((torch.zeros(35, 8, dtype=torch.long), torch.ones(35, 35, dtype=torch.bool)), 8),
        ((torch.zeros(8, 35, dtype=torch.long), torch.zeros(35, 35)), 8),
        ((torch.zeros(8, 35, dtype=torch.long), torch.ones(8, 8, dtype=torch.long)), 8),
        ((torch.zeros(8, 35), torch.zeros(8, 8)), 8),
    ],
    ids=[
        "pair of states",
        "state",
        "features",
        "features and one layer",
        "batch first",
        "one layer",
        "positions",
        "masks",
        "embeddings",
        "lengths",
        "lengths and features",
        "lengths and batch first",
        "indices of positions",
        "weights",
        "lengths on a device",
        "vectors",
        "mask",
        "mask of truth values",
        "mask and batch first",
        "pairs",
        "graph",
    ],
)
def test_sequences_come_first_where_hidden_states_lengths_or_masks_say_so(
    inputs: tuple[Any, ...], samples: int
) -> None:
    assert sizes_of(inputs)[0] == samples


@pytest.mark.parametrize(
    ("inputs", "samples"), [((torch.zeros(4),), None), ((torch.zeros(4, dtype=torch.long),), 4)]
)
def test_a_vector_of_floats_may_be_one_sample_and_is_not_counted(
    inputs: tuple[object, ...], samples: int | None
) -> None:
    assert sizes_of(inputs) == (samples, None)


@pytest.mark.parametrize("labels", [torch.zeros(4, dtype=torch.long), torch.zeros(4)], ids=["class", "value"])
def test_tokens_are_counted_behind_the_labels(labels: torch.Tensor) -> None:
    ids = torch.zeros(4, 9, dtype=torch.long)

    assert sizes_of((labels, ids)) == sizes_of(({"labels": labels, "input_ids": ids},)) == (4, 36)
    assert sizes_of((labels, torch.zeros(2, 30, dtype=torch.long))) == sizes_of((labels,))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_the_samples_of_a_nested_tensor_are_its_tensors(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([torch.ones(3, 5), torch.ones(4, 5)], layout=layout)
    assert sizes_of((nested,)) == (2, None)
    assert sizes_of((torch.ones(2, 3, 5), nested)) == (2, None)
    assert samples_of([nested], batch_axis([nested], 5)) == 2


def test_the_samples_of_a_packed_sequence_are_its_sequences() -> None:
    packed = pack_sequence([torch.ones(2, 5), torch.ones(7, 5), torch.ones(4, 5)], enforce_sorted=False)
    assert sizes_of((packed,)) == (3, None)
    assert samples_of((packed, torch.ones(3)), batch_axis((packed,), 3)) == 3


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (([torch.ones(6), torch.ones(9), torch.ones(6)], torch.ones(3)), 3),
        ({"images": (torch.ones(3, 8, 8), torch.ones(3, 5, 8), torch.ones(3, 6, 6))}, 3),
        ([torch.ones(5, 7), torch.ones(5), torch.ones(5)], 5),
        (([torch.ones(6, 2), torch.ones(6, 2)], torch.ones(2)), 6),
    ],
)
def test_samples_in_a_list_are_its_tensors_where_they_are_as_many_as_the_batch_size(
    batch: Any, samples: int
) -> None:
    assert samples_of(batch, batch_axis(batch, 3)) == samples


def test_lengths_within_vmap_are_not_read() -> None:
    sizes: list[tuple[int | None, int | None]] = []

    def call(tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        sizes.append(sizes_of((tokens, lengths)))
        return tokens.sum()

    torch.vmap(call)(torch.zeros(2, 7, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.long))
    assert sizes == [(7, 21)]


@pytest.mark.parametrize(
    ("images", "targets", "samples"),
    [
        ([torch.zeros(3, 8, 9), torch.zeros(3, 7, 9)], [{"boxes": torch.zeros(2, 4)}] * 2, 2),
        ((torch.zeros(3, 8, 9),) * 4, ({"labels": torch.zeros(2)},) * 4, 4),
        ([torch.zeros(3, 8, 9)] * 4, [torch.zeros(2)] * 4, 3),
        ([torch.zeros(3, 8, 9)] * 4, [{"boxes": torch.zeros(2, 4)}] * 2, 3),
        ([torch.zeros(5, 3, 8, 9)] * 4, [{"boxes": torch.zeros(2, 4)}] * 4, 5),
    ],
)
def test_a_list_of_images_with_the_targets_of_each_has_so_many_samples(
    images: object, targets: object, samples: int
) -> None:
    assert samples_of((images, targets)) == samples
    assert sizes_of((images, targets)) == (samples, None)
