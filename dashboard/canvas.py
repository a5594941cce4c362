"""The dashboard's two browser components: the live chart and the row of figures.

Both are a few lines of inline script that import a module from dashboard/static, served by Streamlit itself:
inline script travels with every message. plotly.js lies there too, as its "basic" bundle: the whole one takes
a browser that was never here a second more. `live_plotly` stands in for `st.plotly_chart`, which remounts on
every change of data and so loses zoom, legend and hover (streamlit#8782).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import streamlit as st

from dashboard.charts.cards import Card
from dashboard.charts.theme import PALETTES
from dashboard.wire import pack

# Streamlit calls what a render returned not only when the component leaves the page, but also when newer data
# arrived before that render was done. The part stays on the page then, and the newer render goes on in it.
_BOOT = """
const url = new URL("{base}/app/static/{module}", location.origin).href;
export default async function (component) {{
  let module;
  try {{
    module = await import(url);
  }} catch (error) {{
    component.parentElement.textContent =
      "This part of the page did not load. Reload the page; if it stays, restart the dashboard.";
    return;
  }}
  const close = await module.render(component);
  return () => {{
    if (!component.parentElement.isConnected) close?.();
  }};
}}
"""


@cache
def _component(module: str) -> Callable[..., Any]:
    base = st.get_option("server.baseUrlPath").strip("/")
    script = _BOOT.format(base=f"/{base}" if base else "", module=module)
    made: Callable[..., Any] = st.components.v2.component(
        f"stepscope_{module.partition('.')[0]}", js=script, isolate_styles=False
    )
    return made


def live_plotly(figure: Mapping[str, Any] | bytes, key: str) -> None:
    """Draw `figure`, a head as `charts.live.figure` makes it or the same already packed, in place.

    The range of steps a person zooms to is kept under `key` in the session's state; see `state.chart_view`.
    """
    payload = figure if isinstance(figure, bytes) else pack_figure(figure)
    _component("plot.mjs")(
        key=key, data=payload, default={"view": None}, on_view_change=_nothing, width="stretch"
    )


def preload() -> None:
    """Load the chart's library on any page, out of sight, so that the first chart need not wait for it."""
    with st.container(key="preload"):
        _component("library.mjs")(key="library")


def pack_figure(figure: Mapping[str, Any]) -> bytes:
    """`figure` as it travels, with the palettes."""
    return pack({**figure, "palette": PALETTES})


def live_cards(cards: Sequence[Card], key: str) -> None:
    """Draw or update the row of figures."""
    data = {"cards": [card._asdict() for card in cards], "palette": PALETTES}
    _component("cards.mjs")(key=key, data=data, width="stretch")


def _nothing() -> None:
    """Zooming needs no reaction of its own: the fragment runs again and reads the range."""
