"""The tags and the note of a run: a small file in its folder, which anybody may have written."""

import json
from collections.abc import Iterable
from typing import NamedTuple

from harness.errors import HomeError, UsageError
from harness.files.plain_json import json_object
from harness.files.regular import read_whole, replace_private
from harness.store.folder import RunFolder
from harness.words import clip, printable

MOST_TAGS = 32
LONGEST_TAG = 40
LONGEST_NOTE = 2_000
_MOST_BYTES = 64 << 10
_TAG_RULE = (
    f"a tag has 1 to {LONGEST_TAG} printable characters, no blank or comma, and begins with a letter or digit"
)


class Labels(NamedTuple):
    """The tags of a run, in alphabetical order, and its note; both empty by default."""

    tags: tuple[str, ...] = ()
    note: str = ""


def read_labels(folder: RunFolder) -> Labels:
    """Return the labels of a run. Of a damaged file only what is valid counts: labels are no reason to hide
    a run."""
    try:
        values = json_object(read_whole(folder.labels, _MOST_BYTES).decode("utf-8"))
    except (OSError, ValueError):
        return Labels()
    tags, note = values.get("tags"), values.get("note")
    valid = {tag for tag in tags if _is_tag(tag)} if isinstance(tags, list) else set()
    text = clip(printable(note), LONGEST_NOTE) if isinstance(note, str) else ""
    return Labels(tuple(sorted(valid)[:MOST_TAGS]), text)


def change_tags(folder: RunFolder, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Labels:
    """Add and remove tags, and return the labels. Raises UsageError for an invalid tag or too many,
    HomeError when the file cannot be written."""
    added = list(add)
    for tag in added:
        if not _is_tag(tag):
            raise UsageError(f"{tag!r} cannot be a tag: {_TAG_RULE}.")
    before = read_labels(folder)
    tags = tuple(sorted((set(before.tags) | set(added)) - set(remove)))
    if len(tags) > MOST_TAGS:
        raise UsageError(f"The run would have {len(tags)} tags; at most {MOST_TAGS} are allowed.")
    return _write(folder, before._replace(tags=tags))


def set_note(folder: RunFolder, text: str) -> Labels:
    """Replace the note; an empty text removes it. Raises UsageError for an unusable text, HomeError when the
    file cannot be written."""
    note = " ".join(text.split())
    if not note.isprintable():
        raise UsageError("The note has characters that cannot be printed; use printable text.")
    if len(note) > LONGEST_NOTE:
        raise UsageError(f"The note has {len(note):,} characters; at most {LONGEST_NOTE:,} are allowed.")
    return _write(folder, read_labels(folder)._replace(note=note))


def _is_tag(tag: object) -> bool:
    return (
        isinstance(tag, str)
        and 0 < len(tag) <= LONGEST_TAG
        and tag[0].isalnum()
        and tag.isprintable()
        and not any(character.isspace() or character == "," for character in tag)
    )


def _write(folder: RunFolder, labels: Labels) -> Labels:
    """Replace the file at once, so that a reader never gets half of it."""
    try:
        replace_private(folder.labels, json.dumps({"tags": labels.tags, "note": labels.note}) + "\n")
    except OSError as error:
        raise HomeError(f"{printable(str(folder.labels))} cannot be written: {error.strerror}.") from None
    return labels
