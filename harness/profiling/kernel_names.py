"""The words in a kernel's name that say what it does: its own function's, without those of its types. Pure.

The name of a kernel is a C++ declaration, such as
"void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int, …)": the arguments and
most template arguments name types, and libraries put their own names into those types.
"""

import re
from typing import NamedTuple

_PARENTHESES = re.compile(r"\([^()]*\)")
_RETURN_TYPE = re.compile(r"^std::enable_if<.*?>::type ")
# Words for types and namespaces that contain the word for a kind of work.
_TYPE_WORDS = re.compile(
    r"fbgemm_gpu::"
    r"|\bcutlass::(?:\w*float\w*|half|tfloat\w*|float_\w+|int\w+|u?int\d+b|array|complex|arch|sizeof_bits)\w*(?:::\w+)?"
    r"|\bcudnn\w*(?:_t|struct)\b"
    r"|\bcublas\w*(?:params|tensor)\w*"
)
# Functions that only call what one of their template arguments names.
_LAUNCHERS = re.compile(r"(?:^|::)(?:kernel\d*|device_kernel|kernel_entry|kentry|cuda_kernel|run_kernel)$")


class KernelName(NamedTuple):
    """A kernel's name in lower case, taken apart. Both texts are without the words for types."""

    # The function's own name, with its namespaces.
    function: str
    # Its template arguments, as one text.
    template: str

    @property
    def is_launcher(self) -> bool:
        """Whether only a template argument says what runs."""
        return _LAUNCHERS.search(self.function) is not None


def parse_kernel_name(name: str) -> KernelName:
    """Take a kernel's name apart, which may be cut off anywhere; a name that is no declaration is its own
    function."""
    text = name.lower().replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    text = _RETURN_TYPE.sub("", text)
    while (shorter := _PARENTHESES.sub("", text)) != text:
        text = shorter
    text = text.partition("(")[0]
    function, _, template = text.partition("<")
    words = function.split()
    function = words[-1] if words and (template or words[0] in ("void", "__global__")) else function.strip()
    return KernelName(_without_types(function), _without_types(template))


def _without_types(text: str) -> str:
    return _TYPE_WORDS.sub("", text)
