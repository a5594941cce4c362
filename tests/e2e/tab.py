"""One browser tab on the dashboard: what a person sees of it, and everything it asks of the network."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlparse

from playwright.sync_api import (
    BrowserContext,
    ConsoleMessage,
    Download,
    FloatRect,
    Locator,
    Page,
    TimeoutError,
    WebSocket,
    expect,
)

from tests.supervision import PATIENCE_S, until

T = TypeVar("T")

RESULTS = Path(__file__).parents[2] / "test-results"
"""Pictures of the pages, not kept by git."""
SCREENS: tuple[tuple[int, Literal["light", "dark"]], ...] = ((390, "dark"), (1440, "light"))
_HERE = frozenset({"localhost", "127.0.0.1"})
# Streamlit's own page looks for its server below the page's path first, gets 404, and then finds it.
_GUESS = re.compile(r"/\w+/_stcore/(health|host-config)$")
_BLANKED = "Bad delta path index"
_OF_BLANK_PAGES = (_BLANKED, "when disconnected from server")
_ROW_PX = 33
_TICK_X_PX = 18
"""Where a row of a table is ticked."""
_LOOK_MS = 100
"""The time between two looks at a page: each takes 10 ms of a core."""
_ANSWER_MS = 2_000
"""The time in which a page answers a click, as by opening a form."""
_INSIDE = frozenset({"data", "blob", "about"})


class Tab:
    """A new tab of a browser window, or a used one, whose browser process need not start again.

    `close` fails when anything went wrong in it: an error in the console, one that no script caught, or a
    request to another machine. A forgiving one bears errors, as when its server is killed on purpose.
    """

    def __init__(
        self, window: BrowserContext, url: str, used: Page | None = None, is_forgiving: bool = False
    ) -> None:
        self.url = url
        self._is_forgiving = is_forgiving
        self.problems: list[str] = []
        self.outside: list[str] = []
        self.requests = 0
        """How many requests were made."""
        self.frames: list[int] = []
        """Sizes in bytes of what the server sent by websocket."""
        self._is_new = used is None
        self.page: Page = used or window.new_page()
        self.page.set_default_timeout(PATIENCE_S * 1000)
        self._listeners: dict[Any, Callable[[Any], None]] = {
            "console": self._listen,
            "pageerror": lambda error: self.problems.append(f"uncaught: {error}"),
            "request": lambda request: self._note(request.url),
            "websocket": self._socket,
        }
        for event, listener in self._listeners.items():
            self.page.on(event, listener)

    def open(self, path: str = "", run: str | None = None) -> None:
        """Go to a page of the dashboard; `run` names the run in the address."""
        self.page.goto(f"{self.url}/{path}" + (f"?run={run}" if run else ""))

    def watch(self, run: str) -> None:
        """Open a run's Live page and wait until its chart is drawn."""
        self.open(run=run)
        self.chart.wait_for()

    def stay_with(self, run: str) -> None:
        """Like `watch`, but a tab that shows the run on its Live page already is not loaded again: for tests
        that do not mind what was zoomed to or opened before."""
        if self.page.url == f"{self.url}/?run={run}" and self.chart.is_visible():
            self.page.keyboard.press("Escape")
        else:
            self.watch(run)

    def expect_run(self, run: str) -> None:
        """Wait until the address names the run."""
        expect(self.page).to_have_url(re.compile(rf"[?&]run={run}"))

    def expect_alert(self, text: str | re.Pattern[str]) -> Locator:
        """Wait for an alert with this text, whatever other alerts there are."""
        alert = self.page.get_by_role("alert").filter(has_text=text).first
        alert.wait_for()
        return alert

    def name_run(self, name: str, shown: str) -> None:
        """Type the name of a new run and wait until the page's command line says `shown`: until then a click
        on a button may miss it, because the page is drawn anew."""
        field = self.page.get_by_label("Name", exact=True)
        field.fill(name)
        field.press("Tab")
        self.page.get_by_text(f"--name {shown}").wait_for()

    def open_form(self, button: str, form: str) -> None:
        """Click on the button that opens a form."""
        self.click_until(button, self.key(form))

    def click_until(self, button: str, sign: Locator) -> None:
        """Click on a button, and again as long as what it brings does not show: a click misses a button that
        is being drawn anew."""

        def shows() -> bool:
            self.button(button).click()
            with suppress(TimeoutError):
                sign.wait_for(timeout=_ANSWER_MS)
            return sign.is_visible()

        self.until(shows, bool)

    @property
    def chart(self) -> Locator:
        """The live chart, once it is drawn."""
        return self.page.locator(".ss-plot[data-ready=true]")

    def key(self, name: str) -> Locator:
        """The part of the page with this key."""
        return self.page.locator(f".st-key-{name}")

    def button(self, key: str) -> Locator:
        """The button with this key."""
        return self.key(key).get_by_role("button").first

    def choice(self, key: str, text: str) -> Locator:
        """One segment of a row of segments."""
        # While the page is drawn anew, the old row of segments still stands behind the new one.
        return self.key(key).get_by_role("radio", name=text, exact=True).first

    def badge(self, text: str, within: str = "live_header") -> Locator:
        """A pill that reads `text`, its icon aside, or begins with it."""
        pills = (
            self.key(within)
            .locator(".stMarkdownBadge")
            .filter(has_text=re.compile(rf"(^|\s){re.escape(text)}"))
        )
        return pills.filter(visible=True).first

    def card(self, name: str) -> str:
        """Return what a figure above the chart shows."""
        return self.page.locator(f'[data-card="{name}"] .ss-card-value').first.inner_text()

    def drawn(self, name: str) -> str:
        """One of the chart's own data attributes, as the browser names it."""
        read = "(charts, name) => charts.map(chart => chart.dataset[name] ?? '')"
        # While the page is drawn anew there are two for a moment.
        return str(
            self.until(lambda: self.chart.evaluate_all(read, name), lambda all_read: len(all_read) == 1)[0]
        )

    @property
    def last_step(self) -> int:
        """The last step on the chart; 0 before the first."""
        return int(self.drawn("lastStep") or 0)

    @property
    def tick(self) -> int:
        """Return how often the chart was drawn since it is there."""
        return int(self.drawn("tick"))

    @property
    def markers(self) -> list[str]:
        """The labels of the markers on the chart."""
        text = self.drawn("markers")
        return [marker.partition(":")[2] for marker in text.split("|")] if text else []

    def plot(self, expression: str, within: Locator | None = None) -> Any:
        """The value of an expression over `plot`, Plotly's element in the live chart or in another part of
        the page, once it is drawn."""
        element = (within or self.chart).locator(".js-plotly-plot").first
        value_if_drawn = (
            f"plot => plot._fullData?.length && plot._fullLayout ? {{ value: {expression} }} : null"
        )
        return self.until(lambda: element.evaluate(value_if_drawn), lambda drawn: drawn is not None)["value"]

    @property
    def view(self) -> list[float]:
        """The range of steps on the chart's x axis."""
        return [float(end) for end in self.plot("plot._fullLayout.xaxis.range")]

    @property
    def hidden(self) -> list[str]:
        """The traces that are switched off in the legend."""
        result: list[str] = self.plot(
            "plot._fullData.filter(trace => trace.visible === 'legendonly').map(trace => trace.name)"
        )
        return result

    def hide(self, trace: str) -> None:
        """Switch a trace off in the legend."""
        entry = self.chart.locator(".legend .traces").filter(has_text=re.compile(f"^{trace}$"))
        entry.locator(".legendtoggle").click()
        self.until(lambda: self.hidden, lambda hidden: trace in hidden)

    def hover_panel(self, share: float) -> FloatRect:
        """Put the mouse over the chart's first panel, at this share of its width, once the page stands still;
        where the panel lies then."""
        panel = self.chart.locator(".nsewdrag").first
        panel.hover(trial=True)
        box = panel.bounding_box()
        assert box is not None
        panel.hover(position={"x": box["width"] * share, "y": box["height"] / 2})
        box = panel.bounding_box()
        assert box is not None
        return box

    def zoom(self) -> list[float]:
        """Drag over the middle third of the chart, from left to right; the range then shown.

        The axis of a run that goes on grows with every tick, so another range is no sign of a zoom; the
        chart's own attribute is.
        """
        before = self.drawn("view")
        box = self.hover_panel(1 / 3)
        y = box["y"] + box["height"] / 2
        self.page.mouse.down()
        self.page.mouse.move(box["x"] + box["width"] / 2, y, steps=4)
        self.page.mouse.move(box["x"] + box["width"] * 2 / 3, y, steps=4)
        self.page.mouse.up()
        self.until(lambda: self.drawn("view"), lambda view: view not in ("", before))
        return self.view

    def choose_run(self, name: str) -> None:
        """Choose another run on the Live page."""
        self.key("pick_run").locator("input").click()
        self.page.get_by_role("option", name=name, exact=True).click()

    def rows(self) -> list[str]:
        """The names in the table of runs, as a screen reader reads them."""
        return [name for name, *_ in self._table()]

    def cell(self, name: str, column: str) -> str:
        """Return what the table of runs says of the run called `name`; waits for a table with that run."""
        heads = self.page.locator("[data-testid=data-grid-canvas] th").all_text_contents
        place = self.until(heads, lambda result: column in result).index(column)
        rows = self.until(self._table, lambda result: name in [row[0] for row in result])
        return next(row for row in rows if row[0] == name)[place]

    def select_row(self, name: str) -> None:
        """Tick the run called `name` in the table."""
        grid = self.page.locator("[data-testid=data-grid-canvas]").first
        grid.wait_for()
        rows = self.until(self.rows, lambda rows: name in rows)
        y = _ROW_PX * (rows.index(name) + 1.5)
        grid.click(position={"x": _TICK_X_PX, "y": y}, force=True)
        selected = "[data-testid=data-grid-canvas] tr[aria-selected=true]"
        expect(self.page.locator(selected).filter(has_text=name)).to_have_count(1)

    def _table(self) -> list[list[str]]:
        rows = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
        result: list[list[str]] = self.page.locator("[data-testid=data-grid-canvas] tbody tr").evaluate_all(
            rows
        )
        return result

    def download(self, link: Locator) -> Download:
        """Return the file that a click on `link` downloads."""
        with self.page.expect_download() as download:
            link.click()
        assert download.value.failure() is None
        return download.value

    def wait_for_ticks(self, number: int) -> None:
        """Wait until the chart was drawn so many times more."""
        begun = self.tick
        self.until(lambda: self.tick, lambda tick: tick >= begun + number)

    def wait_for_steps(self, number: int) -> None:
        """Wait until so many steps more are on the chart."""
        begun = self.last_step
        self.until(lambda: self.last_step, lambda step: step >= begun + number)

    def wait_for_marker(self, label: str, limit_s: float = PATIENCE_S) -> None:
        """Wait until a marker of this label is on the chart."""
        self.until(lambda: self.markers, lambda markers: label in markers, limit_s)

    def until(self, query: Callable[[], T], good: Callable[[T], bool], limit_s: float = PATIENCE_S) -> T:
        """Like `tests.supervision.until`, while the browser's events are handled."""

        def listening() -> T:
            self.page.wait_for_timeout(_LOOK_MS)
            return query()

        return until(listening, good, limit_s)

    def expect_to_fit(self) -> None:
        """Once everything is laid out, nothing hangs out at the side."""
        self.page.locator("[data-testid=stMain]").wait_for()
        overhang = """Math.max(
            document.scrollingElement.scrollWidth - innerWidth,
            (main => main.scrollWidth - main.clientWidth)(document.querySelector("[data-testid=stMain]")),
        )"""
        self.until(lambda: self.page.evaluate(overhang), lambda px: px <= 0)

    def expect_to_fit_all_screens(self, name: str) -> None:
        """On a phone and on a desk, in dark and in light; keeps pictures of this name."""
        for width, theme in SCREENS:
            self.page.set_viewport_size({"width": width, "height": 900})
            self.page.emulate_media(color_scheme=theme)
            self.expect_to_fit()
            self.shoot(RESULTS / f"{name}-{width}-{theme}.png")

    def shoot(self, path: Path) -> None:
        """Take a picture of what is seen."""
        path.parent.mkdir(exist_ok=True)
        self.page.screenshot(path=path)

    def close(self) -> None:
        """Close the tab, or leave a used one to the next; say what went wrong in it."""
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        if self._is_new:
            self.page.close()
        assert not self.outside, f"requests other machines: {self.outside}"
        if any(_BLANKED in problem for problem in self.problems):
            # The page has loaded itself again (`dashboard/static/library.mjs`).
            self.problems = [one for one in self.problems if not any(text in one for text in _OF_BLANK_PAGES)]
        assert self._is_forgiving or not self.problems, self.problems

    def _listen(self, message: ConsoleMessage) -> None:
        url = message.location["url"]
        guessed = "404" in message.text and _GUESS.search(url)
        if message.type == "error" and not guessed:
            self.problems.append(f"{message.text} {json.dumps(message.location)}")

    def _note(self, url: str) -> None:
        self.requests += 1
        parsed = urlparse(url)
        if parsed.scheme not in _INSIDE and parsed.hostname not in _HERE:
            self.outside.append(url)

    def _socket(self, socket: WebSocket) -> None:
        self._note(socket.url)
        socket.on("framereceived", lambda frame: self.frames.append(len(frame)))
