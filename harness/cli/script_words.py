"""The words of a shell command that are Stepscope's, and the script of the user among them: what follows the
script is the script's."""

import os
from collections.abc import Collection, Sequence

from harness.attach.launch import Script


def split_at_script(
    words: Sequence[str], start: int, with_value: Collection[str], flags: Collection[str] = ()
) -> tuple[list[str], Script | None]:
    """Split `words` before the first script or "-m MODULE" from `start` on; None: they name no script. The
    word after an option of `with_value` is its value; a path after any other may be, except for `flags`."""
    at = start
    while at < len(words):
        word = words[at]
        if word == "-m":
            module = "".join(words[at + 1 : at + 2])
            return list(words[:at]), Script(module, tuple(words[at + 2 :]), is_module=True)
        before = words[at - 1]
        may_be_value = before.startswith("-") and "=" not in before and before not in flags
        if is_script(word) and (word.endswith(".py") or not may_be_value):
            return list(words[:at]), Script(word, tuple(words[at + 1 :]), is_module=False)
        at += 2 if word in with_value else 1
    return list(words), None


def is_script(word: str) -> bool:
    """Return whether `word` names a script: a file of Python, or any path. A path to a model of one's own
    (`folder/file.py:function`) is none."""
    is_path = os.sep in word and ".py:" not in word
    return not word.startswith("-") and (is_path or word.endswith((".py", ".pyz")))


def are_only(words: Sequence[str], with_value: Collection[str], flags: Collection[str] = ()) -> bool:
    """Return whether `words` are options of `with_value` with their values, and `flags`."""
    at = 0
    while at < len(words):
        word = words[at]
        if word in with_value:
            at += 2
        elif word in flags or word.partition("=")[0] in with_value:
            at += 1
        else:
            return False
    return True
