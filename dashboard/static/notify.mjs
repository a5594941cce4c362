// The bell in the header: asks for permission when it is pressed, never by itself, and shows alerts as notifications
// of the browser while it is on. The choice stays in this browser; an alert is shown once in all of its tabs.

const CHOICE = "stepscope-notify";
const SHOWN = "stepscope-notified";
const MOST_SHOWN = 200;
const BELL =
  '<svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true"><path fill="currentColor" d="M12 22a2.2 2.2 0 0 0 2.2-2H9.8A2.2 2.2 0 0 0 12 22Zm7-5-1.8-2V10.5a5.2 5.2 0 0 0-4-5.1V4.6a1.2 1.2 0 0 0-2.4 0v.8a5.2 5.2 0 0 0-4 5.1V15L5 17v1h14Z"/></svg>';
const bells = new WeakMap();
// The alerts of this page load: those of the first message are old. null: no message yet.
let known = null;

function permission() {
  return window.Notification && window.isSecureContext ? Notification.permission : "unsupported";
}

function isOn() {
  return permission() === "granted" && localStorage.getItem(CHOICE) === "on";
}

function describe(bell) {
  const words = {
    unsupported: "This browser shows no notifications for this address; open the page as http://localhost or by https.",
    denied: "Notifications of this page are blocked; allow them in the browser's settings for this address.",
  };
  const on = isOn();
  const text = words[permission()] ?? (on ? "Notifications of alerts are on in this browser." : "Notify me of alerts in this browser");
  bell.button.title = text;
  bell.button.setAttribute("aria-label", text);
  bell.button.setAttribute("aria-pressed", String(on));
  bell.button.disabled = permission() in words;
}

function open(parent) {
  const button = document.createElement("button");
  button.className = "ss-bell";
  button.type = "button";
  button.innerHTML = BELL;
  const bell = { button, report: () => {}, on: null };
  button.addEventListener("click", async () => {
    const turnsOn = !isOn();
    if (turnsOn && permission() === "default") await Notification.requestPermission();
    localStorage.setItem(CHOICE, turnsOn && permission() === "granted" ? "on" : "off");
    update(bell);
  });
  parent.appendChild(button);
  return bell;
}

function update(bell) {
  describe(bell);
  const on = isOn();
  if (bell.on === on) return;
  bell.on = on;
  bell.report(on);
}

// True if no tab of this browser is known to have shown the alert; from then on one has.
function claim(key) {
  let shown = [];
  try {
    shown = JSON.parse(localStorage.getItem(SHOWN)) ?? [];
  } catch {
    // Somebody else's text: it is replaced.
  }
  if (shown.includes(key)) return false;
  localStorage.setItem(SHOWN, JSON.stringify([...shown, key].slice(-MOST_SHOWN)));
  return true;
}

function show(alert) {
  try {
    const shown = new Notification(`Stepscope: ${alert.title}`, { body: alert.text, tag: alert.key });
    shown.onclick = () => window.focus();
  } catch {
    // Android's browsers show notifications of service workers only.
  }
}

// The first tab of this browser that has the alert shows it. Two tabs may both look at what was shown before either
// has written, so a lock with the name of the alert decides; its tab keeps it.
function showOnce(alert) {
  const first = (lock) => {
    if (!lock || !claim(alert.key)) return undefined;
    show(alert);
    return new Promise(() => {});
  };
  if (navigator.locks) navigator.locks.request(`${SHOWN} ${alert.key}`, { ifAvailable: true }, first);
  else first({});
}

export function render({ data, parentElement, setStateValue }) {
  let bell = bells.get(parentElement);
  if (!bell) bells.set(parentElement, (bell = open(parentElement)));
  bell.report = (on) => setStateValue("on", on);
  if (bell.on === null) bell.on = data.is_on;
  update(bell);
  bell.button.dataset.watching = String(data.is_on);
  if (data.is_on) {
    const fresh = known === null ? [] : data.alerts.filter((alert) => !known.has(alert.key));
    known = new Set(data.alerts.map((alert) => alert.key));
    if (isOn()) fresh.forEach(showOnce);
  }
  return () => {
    bell.button.remove();
    bells.delete(parentElement);
  };
}
