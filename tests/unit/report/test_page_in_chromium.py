"""Pages in a real browser: nothing on its console, and a viewer that answers keys."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.unit.report.pages import HOSTILE, studies, write_run, write_study

from trimaran.features.report_page.make import report

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)

pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
]

KEYS = """
<script>
addEventListener("error", (event) => { document.title = "error: " + event.message; });
setTimeout(() => {
  const canvas = document.querySelector("canvas"), says = document.querySelector("output"), heard = [];
  const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  const keys = ". . , + + - ] [ ArrowRight ArrowLeft ArrowDown ArrowUp PageDown PageUp 0 .".split(" ");
  for (const key of keys) {
    press(key);
    heard.push(says.textContent);
  }
  document.querySelector(".spans").open = true;
  setTimeout(() => {
    const rows = document.querySelectorAll(".spans tbody tr").length;
    document.body.dataset.heard = JSON.stringify(heard);
    document.body.dataset.rows = rows;
  }, 200);
}, 300);
</script>
"""


def browse(path: Path, folder: Path, *, size: str = "1280,2000", dark: bool = False) -> tuple[str, str]:
    """A page as the browser has it after its scripts, and what it wrote to its console."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"),
            *(f"--window-size={size}", f"--blink-settings=preferredColorScheme={0 if dark else 1}"),
            *("--virtual-time-budget=3000", f"--user-data-dir={folder}", "--dump-dom", path.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def test_what_is_wrong_reaches_the_console(tmp_path: Path) -> None:
    """Else the other tests would show nothing."""
    page = tmp_path / "wrong.html"
    page.write_text("<script>undefined.x</script>")
    assert "CONSOLE" in browse(page, tmp_path / "profile")[1]


@pytest.mark.parametrize("dark", [False, True])
def test_a_run_leaves_the_console_clean(dark: bool, tmp_path: Path) -> None:
    report(write_run(tmp_path / "run", name=HOSTILE), tmp_path / "report.html")
    dom, console = browse(tmp_path / "report.html", tmp_path / "profile", dark=dark, size="390,2000")
    assert console == ""
    # The script has run: it shows the tools and fills the legend.
    assert '<div class="tools">' in dom
    assert "forward</li>" in dom


@pytest.mark.parametrize("name", list(studies()))
def test_a_study_leaves_the_console_clean(name: str, tmp_path: Path) -> None:
    report(write_study(tmp_path / "x.json", studies(HOSTILE)[name]), tmp_path / "report.html")
    assert browse(tmp_path / "report.html", tmp_path / "profile")[1] == ""


def test_the_timeline_answers_keys(tmp_path: Path) -> None:
    """From the first span to the next and back; the table lists the spans of a rank."""
    report(write_run(tmp_path / "run"), tmp_path / "report.html")
    page = tmp_path / "keys.html"
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    # The policy of the page would keep the script of this test from running, as it should.
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    page.write_text(text.replace("</body>", f"{KEYS}</body>"), encoding="utf-8")
    dom, console = browse(page, tmp_path / "profile")
    assert console == ""
    heard = re.search(r'data-heard="([^"]*)"', dom)
    assert heard is not None
    said = heard[1].split("&quot;,&quot;")
    assert "rank 0, predicted, host: IN0 (loading)" in said[0]
    assert all("rank 0, predicted" in one for one in said)
    rows = re.search(r'data-rows="(\d+)"', dom)
    assert rows is not None
    # Of the measured step of rank 0 as `runs.py` draws it: 8 spans, and those of the prediction.
    assert int(rows[1]) >= 8


def test_a_policy_keeps_other_scripts_from_running(tmp_path: Path) -> None:
    report(write_study(tmp_path / "x.json", studies()["scale"]), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = tmp_path / "other.html"
    page.write_text(text.replace("</body>", '<script>document.title = "ran"</script></body>'), encoding="utf-8")
    dom, console = browse(page, tmp_path / "profile")
    assert "<title>ran</title>" not in dom
    assert "Content Security Policy" in console


def test_print_shows_the_tables_that_are_closed_on_the_screen(tmp_path: Path) -> None:
    """A style for paper, taken for the screen: a script cannot look at paper."""
    report(write_run(tmp_path / "run"), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    look = """<script>addEventListener("load", () => {
      const closed = [...document.querySelectorAll("figure:not(.timeline) details:not([open]) table")];
      document.body.dataset.shown = closed.length + "/" + closed.filter((one) => one.checkVisibility()).length;
    })</script>"""
    page = re.sub("<meta http-equiv=.Content-Security-Policy.[^>]*>", "", page).replace("</body>", f"{look}</body>")
    shown = {}
    for medium in ("print", "screen"):
        (tmp_path / "page.html").write_text(page.replace("@media print", f"@media {medium}"))
        dom, _ = browse(tmp_path / "page.html", tmp_path / "profile")
        shown[medium] = re.search('data-shown="([0-9]+)/([0-9]+)"', dom).groups()  # type: ignore[union-attr]
    closed, seen = shown["screen"]
    assert int(closed) > 1
    assert (seen, shown["print"]) == (closed, (closed, "0"))
