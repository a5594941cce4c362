"""The page docs/models.md, from the catalogue: `python -m harness.catalog_docs` prints it."""

from collections.abc import Iterable, Iterator

from harness.catalog import DATA, MODELS, DataSpec, ModelSpec, Preset

_HEAD = """# Models and data

Made by `make docs` from `harness/catalog/`; tests hold the two equal, and each preset's parameters equal to
those of the model that is built.

A preset brings the settings below; what you ask for yourself counts before them. Models whose key begins with
`hf-` need `pip install 'stepscope[hf]'`; their weights are random, and nothing is downloaded.
"""


def markdown() -> str:
    """The whole page."""
    return "\n".join([_HEAD, "## Data\n", *_sources(DATA.values()), *_models(MODELS.values())])


def _sources(specs: Iterable[DataSpec]) -> Iterator[str]:
    yield "| data | yields | what it is |"
    yield "|---|---|---|"
    for spec in specs:
        kind = "what the model takes" if spec.kind is None else f"{spec.kind.value}"
        yield f"| `{spec.key}` | {kind} | {spec.summary} |"
    yield ""


def _models(specs: Iterable[ModelSpec]) -> Iterator[str]:
    for spec in specs:
        yield f"## {spec.key}\n"
        yield f"{spec.summary} Trains on {spec.accepts.value}, by default on `{spec.default_data}`.\n"
        yield "| preset | parameters | settings | scale |"
        yield "|---|---|---|---|"
        yield from (_preset(preset) for preset in spec.presets)
        yield ""


def _preset(preset: Preset) -> str:
    settings = "<br>".join(f"{name} {value}" for name, value in preset.settings.items())
    return f"| `{preset.name}` | {preset.parameters:,} | {settings} | {preset.scale} |"


if __name__ == "__main__":
    print(markdown(), end="")
