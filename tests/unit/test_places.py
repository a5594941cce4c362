"""The order of two places in a script."""

from collections.abc import Callable

from harness.attach.places import Place, is_after, place_in_script


def within(place: Callable[[], Place]) -> Place:
    return place()


def also_within(place: Callable[[], Place]) -> Place:
    return place()


def test_the_later_line_of_the_function_that_leads_to_both_comes_after() -> None:
    first = within(place_in_script)
    second = also_within(place_in_script)
    assert is_after(second, first)
    assert not is_after(first, second)
    assert not is_after(first, first)


def test_the_innermost_function_that_leads_to_both_decides() -> None:
    def both() -> tuple[Place, Place]:
        first = within(place_in_script)
        return also_within(place_in_script), first

    later, earlier = both()
    assert is_after(later, earlier)
    again, _ = both()
    assert not is_after(earlier, again)


def test_of_one_line_the_order_of_evaluation_decides() -> None:
    first, second = within(place_in_script), within(place_in_script)
    assert is_after(second, first)


def test_places_without_a_function_in_common_are_not_ordered() -> None:
    def other() -> Place:
        return place_in_script()[:1]

    assert not is_after(other(), place_in_script()[:1])
    assert not is_after(other(), ())
