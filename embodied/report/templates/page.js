"use strict";
// charts: the nearest record of every line, under the pointer or by the arrow keys
for (const plot of document.querySelectorAll(".plot[data-hover]")) {
  const lines = JSON.parse(plot.dataset.hover);
  const cursor = Object.assign(document.createElement("div"), { className: "cursor", hidden: true });
  const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
  plot.append(cursor, tip);
  const steps = new Map(lines.flatMap((line) => line.points.map((point) => [point[0], point[2]])));
  const places = [...steps.keys()].sort((a, b) => a - b);
  let at = -1;  // the reading that is shown, in `places`
  const hide = () => { cursor.hidden = tip.hidden = true; at = -1; };
  const show = (place) => {
    at = place;
    const x = places[place];
    tip.replaceChildren(...[null, ...lines.filter((line) => line.points.length)].map((line) => {
      const row = document.createElement("div");
      const point = line?.points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
      const value = Object.assign(document.createElement("b"), { textContent: line ? point[3] : steps.get(x) });
      // a line without a record here shows its nearest one, and says where that is
      const where = line ? (point[0] === x ? "" : ` at ${point[2]}`) : ` ${plot.dataset.unit}`;
      row.append(line ? `${line.label} ` : "at ", value, where);
      return row;
    }));
    cursor.style.left = x / 10 + "%";
    tip.style.left = x < 500 ? `calc(${x / 10}% + .6rem)` : "auto";
    tip.style.right = x < 500 ? "auto" : `calc(${100 - x / 10}% + .6rem)`;
    cursor.hidden = tip.hidden = false;
  };
  const follow = (event) => {
    const box = plot.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * 1000;
    if (places.length) show(places.reduce((a, b, i) => (Math.abs(b - x) < Math.abs(places[a] - x) ? i : a), 0));
  };
  plot.addEventListener("pointermove", follow);
  plot.addEventListener("pointerdown", follow);
  // a finger leaves when it is lifted: its reading stays
  plot.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") hide(); });
  plot.tabIndex = 0;
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const last = places.length - 1;
    const to = { ArrowRight: Math.min(at + 1, last), ArrowLeft: at < 0 ? last : Math.max(at - 1, 0), Home: 0, End: last };
    if (event.key === "Escape") hide();
    if (!(event.key in to) || last < 0) return;
    event.preventDefault();
    show(to[event.key]);
  });
}
for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    // a page opened from a file may not use the clipboard: then the command is selected for the reader
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(button.previousElementSibling);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
for (const button of document.querySelectorAll(".play-both")) {
  const videos = [...button.closest("section").querySelectorAll(".heading + .videos video")];
  button.addEventListener("click", () => videos.forEach((video) => { video.currentTime = 0; video.play(); }));
}
