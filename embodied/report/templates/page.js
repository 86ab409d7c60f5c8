"use strict";
// charts: the nearest record of every line under the pointer
for (const plot of document.querySelectorAll(".plot[data-hover]")) {
  const lines = JSON.parse(plot.dataset.hover);
  const cursor = Object.assign(document.createElement("div"), { className: "cursor", hidden: true });
  const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
  plot.append(cursor, tip);
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * 1000;
    const near = lines
      .filter((line) => line.points.length)
      .map((line) => [line, line.points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a))]);
    if (!near.length) return;
    const closest = near.reduce((a, b) => (Math.abs(b[1][0] - x) < Math.abs(a[1][0] - x) ? b : a))[1];
    tip.replaceChildren(...[[null, closest], ...near].map(([line, point]) => {
      const row = document.createElement("div");
      const value = Object.assign(document.createElement("b"), { textContent: line ? point[3] : point[2] });
      row.append(line ? line.label.split(",")[0] + " " : "at ", value, line ? "" : " steps");
      return row;
    }));
    cursor.style.left = closest[0] / 10 + "%";
    tip.style.left = closest[0] < 500 ? `calc(${closest[0] / 10}% + .6rem)` : "auto";
    tip.style.right = closest[0] < 500 ? "auto" : `calc(${100 - closest[0] / 10}% + .6rem)`;
    cursor.hidden = tip.hidden = false;
  });
  plot.addEventListener("pointerleave", () => { cursor.hidden = tip.hidden = true; });
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
