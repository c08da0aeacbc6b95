// Keeps a page up to date without disturbing its reader, and shows times in UTC or in the browser's zone.
//
// Every few seconds the line of the header is asked for, then the page itself; what differs in its `data-live` regions is
// changed in place. Pages of "always" can be asked for while the store is away, too. Rows have ids. While the pointer, the
// keyboard's focus or a selection is in a region, and some seconds after a tap on it, its rows change their values, and none
// comes, goes or moves; the page says so when one would. Elements with `data-keep` look after themselves.
"use strict";
(function () {
  const EVERY_MS = 4000, PATIENCE_MS = 4000, TAPPED_MS = 10000, AWAKE_S = 20;  // a page that is awake is refreshed more often
  const memory = {
    get(name) { try { return sessionStorage.getItem(name); } catch (_) { return null; } },
    set(name, value) { try { sessionStorage.setItem(name, value); } catch (_) { /* it lasts as long as the page */ } },
  };
  let paused = memory.get("paused") === "yes", local = memory.get("zone") === "local";

  // ---- changes in place -------------------------------------------------------------------------------------------
  let tapped = null, tappedAt = 0;
  document.addEventListener("pointerup", ({ target }) => { tapped = target; tappedAt = Date.now(); });

  // What was tapped or clicked keeps the focus until something else is: only the keyboard's focus counts.
  function isHeld(region) {
    if (matchMedia("(hover: hover)").matches && region.matches(":hover")) return true;
    if (region.querySelector(":focus-visible") || isSelected(region)) return true;
    return !matchMedia("(hover: hover)").matches && region.contains(tapped) && Date.now() - tappedAt < TAPPED_MS;
  }

  function isSelected(node) {
    const selection = getSelection();
    return Boolean(selection && !selection.isCollapsed && selection.rangeCount && selection.getRangeAt(0).intersectsNode(node));
  }

  const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE && node.id) || "";
  const isLike = (one, other) => one.nodeType === other.nodeType && one.nodeName === other.nodeName && keyOf(one) === keyOf(other);

  function change(old, fresh, held) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data && !isSelected(old)) old.data = fresh.data;
      return;
    }
    if (old.hasAttribute("data-keep")) return;
    for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    if (["INPUT", "SELECT", "TEXTAREA"].includes(old.nodeName)) return;
    if (held) changeHeld(old, fresh); else changeAll(old, fresh);
  }

  // Rows keep their places; those that are gone are dimmed. What has no id is matched by its place among what has none.
  function changeHeld(old, fresh) {
    const news = [...fresh.childNodes], byKey = new Map(news.filter(keyOf).map((child) => [keyOf(child), child]));
    const others = news.filter((child) => !keyOf(child)).values();
    for (const child of [...old.childNodes]) {
      const key = keyOf(child), next = key ? byKey.get(key) : others.next().value;
      if (next && isLike(child, next)) change(child, next, true); else if (key) child.classList.add("gone");
    }
  }

  function changeAll(old, fresh) {
    const byKey = new Map([...old.childNodes].filter(keyOf).map((child) => [keyOf(child), child]));
    let at = old.firstChild;
    for (const next of [...fresh.childNodes]) {
      const kept = keyOf(next) ? byKey.get(keyOf(next)) : at && !keyOf(at) && isLike(at, next) ? at : null;
      if (kept && isLike(kept, next)) {
        if (kept === at) at = at.nextSibling; else old.insertBefore(kept, at);
        kept.nodeType === Node.ELEMENT_NODE && kept.classList.remove("gone");
        change(kept, next, false);
      } else {
        old.insertBefore(document.importNode(next, true), at);
      }
    }
    while (at) { const gone = at; at = at.nextSibling; gone.remove(); }
  }

  // ---- asking -----------------------------------------------------------------------------------------------------
  class LoggedOut extends Error {}

  // Headroom redirects none of these: a proxy does, to its login.
  async function ask(path) {
    const answer = await fetch(path, { headers: { "x-headroom-live": "yes" }, redirect: "manual", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (answer.type === "opaqueredirect" || answer.status === 401 || answer.status === 403) throw new LoggedOut(path);
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    return new DOMParser().parseFromString(await answer.text(), "text/html");
  }

  const line = () => document.getElementById("freshness");
  const nowS = () => Math.floor(Date.now() / 1000);
  let silentSince = null, refreshedAt = nowS();  // of this page
  const opened = { path: location.pathname, search: location.search };

  // The newest minute that the rows of the page can have.
  function shownTime() {
    const at = Number(line().dataset.shown);
    return at ? timeElement(at) : "nothing";
  }

  // The line while Headroom itself does not answer this page: states that the server cannot describe.
  function showSilence(isLoggedOut) {
    silentSince = silentSince || nowS();
    const old = line(), state = isLoggedOut ? "logged-out" : "silent";
    if (old.dataset.state === state) return;
    const why = document.createElement("b"), again = document.createElement("a");
    why.textContent = isLoggedOut ? "you are logged out" : "Headroom does not answer";
    again.textContent = "log in again"; again.href = location.href;
    const parts = [why, " since ", timeElement(silentSince), ", shown is ", shownTime(), ...(isLoggedOut ? [": ", again] : [])];
    old.dataset.state = state; old.className = "away"; old.replaceChildren(...parts);
  }

  // The line while the rows are older than what the server says.
  function showStale(hasSlept) {
    const old = line(), why = document.createElement("b"), state = hasSlept ? "slept" : "stale";
    if (old.dataset.state === state) return;
    why.textContent = hasSlept ? "this page has slept" : "this page could not be refreshed";
    old.dataset.state = state; old.className = "late";
    old.replaceChildren(why, ", shown is ", timeElement(refreshedAt));
    showZone();
  }

  function timeElement(at) {
    const made = document.createElement("time");
    made.dataset.at = String(at); made.dataset.form = "clock";
    made.dateTime = new Date(at * 1000).toISOString().slice(0, 19) + "Z";
    made.textContent = made.dateTime.slice(11, 19) + " UTC";
    return made;
  }

  // The rows are what the server says only if they were refreshed; otherwise they are as old as before.
  function showLine(fresh, isNew) {
    const old = line(), shown = old.dataset.shown;
    if (paused && fresh.dataset.state === "live") {  // what is shown is older than that
      if (old.dataset.state !== "paused") {
        const word = document.createElement("b");
        word.textContent = "paused";
        old.dataset.state = old.className = "paused";
        old.replaceChildren(word, ", shown is ", shownTime());
      }
      return;
    }
    old.className = fresh.className;
    for (const name of ["state", "shown"]) if (fresh.dataset[name]) old.dataset[name] = fresh.dataset[name]; else delete old.dataset[name];
    old.replaceChildren(...fresh.childNodes);
    if (isNew || fresh.dataset.shown === shown) return;
    if (shown) old.dataset.shown = shown; else delete old.dataset.shown;
    const told = old.querySelector(".shown");
    if (told) told.replaceChildren(shownTime()); else old.append(", shown is ", shownTime());
  }

  async function turn() {
    if (document.hidden) return;
    if (line().dataset.state === "live" && nowS() - refreshedAt > AWAKE_S) showStale(true);
    let fresh, isLoggedOut = false;
    try { fresh = (await ask("/freshness")).getElementById("freshness"); isLoggedOut = !fresh; } catch (error) { isLoggedOut = error instanceof LoggedOut; }
    if (!fresh) showSilence(isLoggedOut); else { silentSince = null; await showFresh(fresh); }
    showZone();
  }

  // The line says "live" only of rows that were refreshed.
  async function showFresh(fresh) {
    const isAway = fresh.dataset.state === "away";
    if (!isAway && document.querySelector("[data-away]")) location.reload();
    if (isAway) {
      showLine(fresh, false);
      if (!paused && document.querySelector("[data-live=always]")) await refresh();
      return;
    }
    const isNew = !paused && await refresh() && !paused;
    if (isNew || paused) showLine(fresh, isNew); else showStale(false);
  }

  const rowsOf = (region) => [...region.querySelectorAll("tbody tr[id]")].filter((row) => !row.closest("[data-keep]")).map(keyOf).join();

  // Whether it worked, or was not needed; the next turn asks again.
  async function refresh() {
    const regions = [...document.querySelectorAll("[data-live]")];
    if (!regions.length) { refreshedAt = nowS(); return true; }
    let page;
    // The answer to a form below has an address of its own, which has none of these regions and may be dear.
    const search = location.pathname === opened.path ? location.search : opened.search;
    try { page = await ask(opened.path + search); } catch (_) { return paused; }
    if (paused) return true;
    let isWaiting = false;
    for (const region of regions) {
      const fresh = page.getElementById(region.id);
      if (!fresh) continue;
      if (local) for (const time of fresh.querySelectorAll("time[data-at]")) write(time);
      change(region, fresh, isHeld(region));
      isWaiting ||= rowsOf(region) !== rowsOf(fresh);
    }
    document.getElementById("waiting").hidden = !isWaiting;
    refreshedAt = nowS();
    document.dispatchEvent(new CustomEvent("headroom:refreshed"));
    return true;
  }

  // ---- switches ---------------------------------------------------------------------------------------------------
  const two = (number) => String(number).padStart(2, "0");
  const zones = new Intl.DateTimeFormat("en", { timeZoneName: "short" });
  const zoneName = (at = new Date()) => zones.formatToParts(at).find((part) => part.type === "timeZoneName").value;

  function write(time) {
    const at = new Date(Number(time.dataset.at) * 1000), clock = time.dataset.form === "clock";
    const utc = at.toISOString();
    const text = local
      ? `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`
      : `${utc.slice(0, 10)} ${utc.slice(11, 19)}`;
    const zone = local ? zoneName(at) : "UTC", isOfOther = local && zone !== zoneName();  // summer's, read in winter
    const shown = clock ? `${text.slice(11)} ${zone}` : isOfOther ? `${text} ${zone}` : text;
    if (time.textContent !== shown && !isSelected(time)) time.textContent = shown;
  }

  function showZone() {
    document.querySelectorAll("time[data-at]").forEach(write);
    document.querySelectorAll(".zone").forEach((label) => { label.textContent = local ? zoneName() : "UTC"; });
  }

  function show() {
    const pause = document.getElementById("pause"), zone = document.getElementById("zone");
    pause.setAttribute("aria-pressed", String(paused));
    zone.setAttribute("aria-pressed", String(local));
    document.documentElement.dataset.zone = local ? "local" : "utc";
    document.documentElement.dataset.paused = paused ? "yes" : "no";
    showZone();
  }

  document.querySelector(".switches").hidden = false;
  document.getElementById("pause").addEventListener("click", () => { paused = !paused; memory.set("paused", paused ? "yes" : "no"); show(); turn(); });
  document.getElementById("zone").addEventListener("click", () => {
    local = !local; memory.set("zone", local ? "local" : "utc"); show();
    document.dispatchEvent(new CustomEvent("headroom:zone"));
  });
  document.addEventListener("htmx:afterSwap", showZone);
  // For screen readers: a state that is new, and what a search or a form found. Ages and refreshed rows are not spoken, and
  // a region that is replaced itself would not be.
  function speak(part) {
    const spoken = document.getElementById("spoken"), text = part ? part.textContent.trim() : "";
    if (spoken.textContent !== text) spoken.textContent = text;
  }
  new MutationObserver(() => speak(line().querySelector("b"))).observe(line(), { attributeFilter: ["data-state"] });
  document.addEventListener("htmx:afterSettle", ({ detail }) => {
    const asker = detail.requestConfig && detail.requestConfig.elt;
    if (!asker || !asker.matches("form")) return;
    const answer = document.querySelector(asker.getAttribute("hx-target"));
    speak(answer.querySelector(".pager") || answer.querySelector("p:not(.levels)"));
  });
  // Otherwise the rows of an earlier question would stay below a new one.
  document.addEventListener("htmx:responseError", ({ detail }) => { if (detail.elt.matches("form")) location.assign(detail.pathInfo.finalRequestPath); });
  document.addEventListener("htmx:sendError", turn);
  // Browsers have a clipboard over HTTPS and on localhost only; elsewhere the text is selected and copied.
  async function copy(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    if (!copied) throw new Error("not copied");
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    copy(button.dataset.copy).then(() => { button.dataset.copied = "yes"; setTimeout(() => delete button.dataset.copied, 2000); }, () => {});
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) turn(); });
  show();
  (async function forever() { for (;;) { await new Promise((done) => setTimeout(done, EVERY_MS)); await turn(); } })();
})();
