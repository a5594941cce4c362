"""The dashboard's browser components: the live chart, the row of cards, and the bell of notifications.

Each is a few lines of inline script, which is sent with every message, that import a module from
dashboard/static, served by Streamlit. plotly.js is served from there too, as its "basic" bundle: the full one
adds a second to the first visit. `live_plotly` replaces `st.plotly_chart`, which remounts on every change of
data and so loses zoom, legend and hover (streamlit#8782).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import streamlit as st

from dashboard.charts.cards import Card
from dashboard.charts.theme import PALETTES
from dashboard.wire import pack
from harness.alerts import RunAlert

# Streamlit calls the cleanup function of a render when the component leaves the page, but also when newer
# data arrives before that render is done. The element stays on the page then, and the newer render reuses it.
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
    """Draw `figure`, a head from `charts.live.figure` or the packed bytes of one, in place.

    The range of steps zoomed to is stored under `key` in the session state; see `dashboard.state.chart_zoom`.
    """
    payload = figure if isinstance(figure, bytes) else pack_figure(figure)
    _component("plot.mjs")(
        key=key, data=payload, default={"view": None}, on_view_change=_nothing, width="stretch"
    )


def preload() -> None:
    """Load the chart library on any page, invisibly, so that the first chart does not wait for it."""
    with st.container(key="preload"):
        _component("library.mjs")(key="library")


def pack_figure(figure: Mapping[str, Any]) -> bytes:
    """Serialize `figure` with the palettes."""
    return pack({**figure, "palette": PALETTES})


def live_cards(cards: Sequence[Card], key: str) -> None:
    """Draw or update the row of cards."""
    data = {"cards": [card._asdict() for card in cards], "palette": PALETTES}
    _component("cards.mjs")(key=key, data=data, width="stretch")


def bell(alerts: Sequence[RunAlert], is_on: bool, key: str) -> None:
    """Draw the bell, and notify of those of `alerts` that are new to the browser.

    Whether it is on is stored under `key` in the session state; see `dashboard.state.are_notifications_on`.
    """
    items = [{"key": alert.key, "title": alert.kind.heading, "text": alert.text} for alert in alerts]
    data = {"alerts": items, "is_on": is_on}
    _component("notify.mjs")(key=key, data=data, default={"on": is_on}, on_on_change=_nothing)


def _nothing() -> None:
    """Do nothing: the fragment reruns after a change in the browser and reads it."""
