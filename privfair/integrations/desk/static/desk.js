// The planner: sliders beside the fields, and answers as they move. Without this file the form works by its button.
"use strict";
(() => {
  const form = document.getElementById("planner");
  if (!form) return;
  const answer = document.getElementById("answer"), curves = document.getElementById("curves");
  const ask = document.getElementById("ask");
  let running = null, waiting = 0;

  const log = (slider) => [Math.log(Number(slider.dataset.low)), Math.log(Number(slider.dataset.high))];
  const toSlider = (slider, value) => {
    const [low, high] = log(slider);
    slider.value = Math.round(1000 * (Math.log(Math.max(value, Number(slider.dataset.low))) - low) / (high - low));
    slider.setAttribute("aria-valuetext", String(value));
  };
  const fromSlider = (slider) => {
    const [low, high] = log(slider);
    const value = Math.exp(low + (Number(slider.value) / 1000) * (high - low));
    return slider.dataset.whole === "1" ? String(Math.max(1, Number(value.toPrecision(2)) | 0)) : String(Number(value.toPrecision(2)));
  };
  const sliders = [...form.querySelectorAll("input[type=range]")];
  for (const slider of sliders) {
    const field = document.getElementById(slider.dataset.for);
    slider.hidden = false;
    if (Number(field.value) > 0) toSlider(slider, Number(field.value));
    slider.addEventListener("input", () => {
      field.value = fromSlider(slider);
      slider.setAttribute("aria-valuetext", field.value);
      later();
    });
    field.addEventListener("input", () => {
      if (Number(field.value) > 0) toSlider(slider, Number(field.value));
      later();
    });
  }
  for (const other of form.querySelectorAll("select, details input")) other.addEventListener("input", later);
  document.getElementById("algorithm").addEventListener("change", () => form.submit());

  function later() {
    clearTimeout(waiting);
    waiting = setTimeout(refresh, 40);
  }
  async function refresh() {
    if (running) running.abort();
    const mine = running = new AbortController();
    const query = new URLSearchParams(new FormData(form)).toString();
    for (const [name, value] of new FormData(form)) if (ask.elements[name]) ask.elements[name].value = value;
    try {
      for (const [path, place] of [["/planner/answer", answer], ["/planner/curves", curves]]) {
        const got = await fetch(path + "?" + query, { signal: mine.signal });
        const text = await got.text();
        if (mine.signal.aborted) return;
        place.replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
      }
      history.replaceState(null, "", "/planner?" + query);
    } catch (error) {
      if (error.name !== "AbortError") answer.textContent = "The desk does not answer any more; start it again.";
    }
  }
})();
