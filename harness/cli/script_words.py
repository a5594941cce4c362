"""The words of a shell command that are Stepscope's, and the script of the user among them: what follows the
script is the script's."""

from collections.abc import Collection, Sequence

from harness.attach.launch import Script


def split_at_script(
    words: Sequence[str], start: int, with_value: Collection[str]
) -> tuple[list[str], Script | None]:
    """Split `words` before the first script or "-m MODULE" from `start` on; None: they name no script. The
    word after an option of `with_value` is its value."""
    at = start
    while at < len(words):
        word = words[at]
        if word == "-m":
            module = "".join(words[at + 1 : at + 2])
            return list(words[:at]), Script(module, tuple(words[at + 2 :]), is_module=True)
        if word.endswith(".py") and not word.startswith("-"):
            return list(words[:at]), Script(word, tuple(words[at + 1 :]), is_module=False)
        at += 2 if word in with_value else 1
    return list(words), None


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
