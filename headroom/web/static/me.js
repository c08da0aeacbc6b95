// Keeps an application's own page up to date: asks for it when the server says that there is something newer, and changes
// what differs. A reload would begin anew for who listens to the page, and lose the focus.
"use strict";
(function () {
  const main = () => document.getElementById("main"), line = document.getElementById("freshness");

  // In place, as long as both have the same parts.
  function change(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    const olds = [...old.childNodes], news = [...fresh.childNodes];
    if (old.nodeName !== fresh.nodeName || olds.length !== news.length) { old.replaceWith(document.importNode(fresh, true)); return; }
    if (old.nodeType !== Node.ELEMENT_NODE) { old.data = fresh.data; return; }
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    olds.forEach((child, place) => change(child, news[place]));
  }

  async function refresh() {
    if (document.hidden || !getSelection().isCollapsed) return;
    try {
      const answer = await fetch(location.href, { redirect: "manual", signal: AbortSignal.timeout(15000) });
      if (!answer.ok) throw new Error(answer.status);
      change(main(), new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("main"));
      line.className = line.textContent = "";
    } catch (_) {
      line.className = "late";
      line.textContent ||= `this page could not be refreshed since ${new Date().toISOString().slice(11, 19)} UTC`;
    }
  }

  document.addEventListener("visibilitychange", refresh);
  (async function forever() { for (;;) { await new Promise((done) => setTimeout(done, 1000 * main().dataset.next)); await refresh(); } })();
})();
