"""The run report in a real browser."""

from __future__ import annotations

import re

import pytest
from browser import PROGRAM, visit
from synthetic_run import text_of

from embodied.report import build_report

needs_browser = pytest.mark.skipif(PROGRAM is None, reason="no Chromium (apt-get install chromium)")


@needs_browser
def test_browser_shows_the_page_without_errors_and_without_asking_for_anything_else(finished, tmp_path):
    seen = visit(build_report(finished), tmp_path)
    assert seen.console == []
    assert seen.resources == []
    text = text_of(seen.dom)
    for words in ("Goal reached", "Success went from 3.1%", "The bottleneck is rollout", "Learning health"):
        assert words in text
    # the check itself sees a fault and a request
    broken = visit(finished / "report.html", tmp_path, script="fetch('https://example.invalid/x'); null.x")
    assert any("TypeError" in line for line in broken.console)
    assert broken.resources == ["https://example.invalid/x"]


@needs_browser
def test_browser_plays_both_videos_and_shows_readings_under_the_pointer(finished, tmp_path):
    script = """
    // a video that preloads holds back the load event until its first picture is decoded
    const videos = [...document.querySelectorAll("video")];
    videos.forEach((video) => { video.preload = "auto"; video.load(); });
    addEventListener("load", () => {
      const plot = document.querySelector(".plot"), box = plot.getBoundingClientRect();
      const at = { clientX: box.right - 1, clientY: box.top + 5 };
      plot.dispatchEvent(new PointerEvent("pointermove", at));
      document.body.dataset.tip = plot.querySelector(".tip").textContent;
      document.body.dataset.videos = videos.map((v) => `${v.videoWidth}x${v.videoHeight}`).join();
      document.querySelector(".play-both").click();
      document.body.dataset.playing = videos.map((v) => !v.paused).join();
    });
    """
    seen = visit(build_report(finished), tmp_path, script=script)
    # two by two cells of a 128 px picture, enlarged twice, between strips of 32 and 33 px
    assert 'data-videos="512x642,512x642"' in seen.dom
    assert 'data-playing="true,true"' in seen.dom
    assert re.search(r'data-tip="at 492k environment stepsTraining \d+%Evaluation 97% \(89% – 99.1%\)"', seen.dom)


@needs_browser
def test_page_fits_a_phone(finished, tmp_path):
    script = """
    addEventListener("load", () => {
      document.documentElement.style.width = "360px";  // narrower than a browser window may be
      const inside = (e) => e.closest(".scroll, pre, svg, details:not([open])");
      const wide = [...document.querySelectorAll("main *")]
        .filter((e) => !inside(e) && e.getBoundingClientRect().right > 361)
        .map((e) => e.tagName + "." + e.className);
      document.body.dataset.wide = wide.join();
    });
    """
    seen = visit(build_report(finished), tmp_path, script=script, width=500)
    assert 'data-wide=""' in seen.dom
