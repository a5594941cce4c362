"""Parsing of kernel names: the function's own name, without the names of types. Pure.

The name of a kernel is a C++ declaration, such as
"void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int, …)": the arguments and
most template arguments name types, and libraries put their own names into those types.
"""

import re
from typing import NamedTuple

_PARENTHESES = re.compile(r"\([^()]*\)")
_RETURN_TYPE = re.compile(r"^std::enable_if<.*?>::type ")
# Names of types and namespaces that contain the name of a kind of work.
_TYPE_WORDS = re.compile(
    r"fbgemm_gpu::"
    r"|\bcutlass::(?:\w*float\w*|half|tfloat\w*|float_\w+|int\w+|u?int\d+b|array|complex|arch|sizeof_bits)\w*(?:::\w+)?"
    r"|\bcudnn\w*(?:_t|struct)\b"
    r"|\bcublas\w*(?:params|tensor)\w*"
)
# Before the function's own name, in kernels written in CUTLASS's Python.
_DSL_PREFIX = "kernel_cutlass_"
# Functions that only call one of their template arguments.
_LAUNCHERS = re.compile(r"(?:^|::)(?:kernel\d*|device_kernel|kernel_entry|kentry|cuda_kernel|run_kernel)$")


class KernelName(NamedTuple):
    """A parsed kernel name in lower case, without the names of types."""

    # The function's name, with its namespaces.
    function: str
    # Its template arguments, as one text.
    template: str

    @property
    def is_launcher(self) -> bool:
        """True when only a template argument identifies the work."""
        return _LAUNCHERS.search(self.function) is not None


def parse_kernel_name(name: str) -> KernelName:
    """Parse a kernel's name, which may be truncated; a name that is not a declaration is the function's
    name."""
    text = name.lower().replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    text = text.replace(_DSL_PREFIX, "")
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
