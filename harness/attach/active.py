"""The attachment of this process: torch's entry points are patched once, so there is at most one."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.attach.launch import Attachment
    from harness.attach.remarks import Remarks

_attached: "list[Attachment]" = []


def active() -> "Attachment | None":
    """Return the attachment of this process, if any."""
    return _attached[-1] if _attached else None


def active_remarks() -> "Remarks | None":
    """Return what takes the remarks of this process about its training, if it is attached."""
    attachment = active()
    return None if attachment is None or attachment.session is None else attachment.session.remarks


def activate(attachment: "Attachment") -> None:
    """Make `attachment` that of this process."""
    _attached.append(attachment)


def deactivate(attachment: "Attachment") -> None:
    """End the attachment of this process. Idempotent."""
    if attachment in _attached:
        _attached.remove(attachment)
