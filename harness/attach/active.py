"""The attachment of this process: torch's entry points are patched once, so there is at most one."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.attach.launch import Attachment

_attached: "list[Attachment]" = []


def active() -> "Attachment | None":
    """Return the attachment of this process, if any."""
    return _attached[-1] if _attached else None


def activate(attachment: "Attachment") -> None:
    """Make `attachment` that of this process."""
    _attached.append(attachment)


def deactivate(attachment: "Attachment") -> None:
    """End the attachment of this process. Idempotent."""
    if attachment in _attached:
        _attached.remove(attachment)
