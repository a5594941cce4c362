"""The number of examples of a property test, in proportion to that of the profile."""

from hypothesis import settings


def examples(share: float) -> settings:
    """Return the settings of a property test that takes `share` times as many examples as others."""
    profile = settings.default
    assert profile is not None
    return settings(max_examples=max(5, round(share * profile.max_examples)))
