// Keeps the page up to date. Without it everything else works.
(() => {
  "use strict";
  const part = document.querySelector("[data-events]");
  const bar = document.getElementById("live");
  if (!part || !bar || !window.EventSource) return;
  const said = bar.querySelector("span");
  const button = bar.querySelector("button");
  const actions = document.querySelector(".actions");
  let events = null;
  let paused = false;

  // What is not live is of the moment that the fragment says.
  const say = (text) => {
    part.classList.toggle("stale", text !== "Live" && text !== "Connecting");
    // A screen reader reads each change aloud.
    if (said.textContent !== text) said.textContent = text;
  };
  const selecting = () => {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  };
  // Whoever moves through the links with the keyboard stays where he is.
  const replace = (fragment) => {
    const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    part.innerHTML = fragment;
    // What nobody holds can be neither revoked nor freed.
    if (actions) actions.hidden = !part.querySelector(".state.held, .state.revoked");
    if (focused !== null) part.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  };
  const close = () => {
    events?.close();
    events = null;
  };
  const open = () => {
    if (events || paused || document.hidden) return;
    events = new EventSource(part.dataset.events);
    events.addEventListener("open", () => say("Live"));
    events.addEventListener("error", () => {
      say("Not connected, trying again");
      // After an answer other than a stream, such as a proxy's 502, the browser does not try again.
      if (events?.readyState !== EventSource.CLOSED) return;
      close();
      setTimeout(open, 5000);
    });
    events.addEventListener("failure", (event) => say(`Not up to date: ${event.data}`));
    events.addEventListener("fragment", (event) => {
      say("Live");
      if (!selecting()) replace(event.data);
    });
  };
  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "Go on" : "Pause";
    if (paused) {
      close();
      say("Paused");
    } else {
      open();
    }
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  bar.hidden = false;
  say("Connecting");
  open();
})();
