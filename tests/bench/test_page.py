"""The report as a browser shows it: every plot has a picture in it, in the light and in the dark."""

import re
import shutil
import subprocess
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from bench_toys import PROMPTS, record, row
from numpy.typing import NDArray

from metasd.bench.lossless import Verdict
from metasd.bench.measure import Plan
from metasd.bench.outcome import Outcome
from metasd.bench.page import page, write_page
from metasd.bench.statistics import table
from metasd.core import MetaSDError

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
NAMES = {
    "speed-overall", "speed-a", "speed-b", "arms-auto", "arms-random", "reward", "positions",
}  # fmt: skip
# Writes where each plot lies into the document, where --dump-dom finds it.
MEASURE = """<script>addEventListener("load", () => { const lines = [`page ${document.documentElement.scrollWidth}`];
for (const each of document.querySelectorAll(".plot")) { const box = each.querySelector("svg").getBoundingClientRect();
lines.push(`${each.id} ${box.left} ${box.top} ${box.right} ${box.bottom}`); }
const note = document.createElement("pre"); note.id = "boxes"; note.textContent = lines.join(";");
note.style.display = "none"; document.body.append(note); });</script>"""
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")


def outcome() -> Outcome:
    rng = np.random.default_rng(0)
    rows = []
    for index, prompt in enumerate(PROMPTS):
        for name, seconds in (("plain", 4.0), ("arm:x", 3.0), ("arm:y", 2.5), ("random", 3.2), ("auto", 2.0)):
            rounds = []
            for k in range(20 if name != "plain" else 0):
                arm = {"arm:x": "x", "arm:y": "y"}.get(
                    name, "xyz"[int(rng.integers(3)) if name == "random" else k // 8]
                )
                rounds.append(record(arm, 4, int(rng.integers(5)), k, bd=0.5))
            rows.append(row(name, prompt.id, 40, seconds + 0.2 * index, prompt.domain, rounds=rounds))
    passport = {"command": "metasd bench <&>", "device": "toy", "threads": 1, "dtype": "float32", "versions": {}}
    verdict = Verdict(True, {"auto": 4}, (), ())
    settings = {"target": "toy", "drafters": "x, y, z"}
    return Outcome(passport, settings, Plan(), rows, table(rows), verdict, {"flashspec": "not <installed>"}, {})


def test_the_page_needs_nothing_from_outside() -> None:
    text = page(outcome())
    assert set(re.findall(r'id="plot-([^"]+)"', text)) == NAMES
    assert "<script" not in text
    assert not re.findall(r'(?:src|href)="(?!#)[^"]*"', text)
    assert not re.findall(r"url\((?!#)", text)
    assert "@import" not in text
    assert "metasd bench &lt;&amp;&gt;" in text
    assert "not &lt;installed&gt;" in text
    assert not re.findall(r"#0102\w\w", text), "a placeholder colour is left"
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(set(ids)) == len(ids)
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text))
    assert {first or second for first, second in used} <= set(ids)


def test_a_page_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(MetaSDError, match="--html: cannot write"):
        write_page(outcome(), tmp_path / "none" / "report.html")


def shown(text: str, folder: Path, width: int, is_dark: bool) -> tuple[NDArray[np.float64], dict[str, list[float]]]:
    """A screenshot `[height, width, 3]` and where things lie in it."""
    file, picture = folder / "report.html", folder / "report.png"
    file.write_text(text.replace("</body>", MEASURE + "</body>"))
    scheme = f"--blink-settings=preferredColorScheme={0 if is_dark else 1}"
    common = [str(CHROMIUM), *FLAGS, scheme, f"--window-size={width},6000"]

    def call(*words: str) -> str:
        profile = folder / f"profile{len(list(folder.iterdir()))}"
        command = [*common, f"--user-data-dir={profile}", *words, file.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout

    dom = call("--dump-dom")
    call(f"--screenshot={picture}")
    found = re.search(r'<pre id="boxes"[^>]*>([^<]+)</pre>', dom)
    assert found is not None
    boxes = {line.split()[0]: [float(part) for part in line.split()[1:]] for line in found.group(1).split(";")}
    return np.asarray(matplotlib.image.imread(picture))[..., :3].astype(np.float64), boxes


def ink(picture: NDArray[np.float64], box: list[float]) -> float:
    """Share of a region's pixels that are not of its most frequent colour."""
    left, top, right, bottom = map(round, box)
    region = (picture[top:bottom, left:right] * 255).round().astype(np.int64).reshape(-1, 3)
    codes = region @ np.array([1 << 16, 1 << 8, 1])
    _, counts = np.unique(codes, return_counts=True)
    return 1 - float(counts.max()) / len(codes)


@needs_chromium
@pytest.mark.parametrize(("width", "is_dark"), [(500, True), (1280, False)], ids=["phone-dark", "desk-light"])
def test_no_plot_is_blank(tmp_path: Path, width: int, is_dark: bool) -> None:
    """A plot that is emptied beside them is the negative control."""
    text = page(outcome())
    emptied = re.sub(
        r"(<figure[^>]*)plot-reward(.*?<svg[^>]*>).*?(</svg>)", r"\1plot-emptied\2\3", text, flags=re.DOTALL
    )
    assert emptied != text
    picture, boxes = shown(text.replace("</main>", _emptied_figure(emptied) + "</main>"), tmp_path, width, is_dark)
    assert picture.shape[1] == width
    assert boxes.pop("page") == [width], "the page is wider than the screen"
    assert ink(picture, boxes.pop("plot-emptied")) == 0
    assert set(boxes) == {f"plot-{name}" for name in NAMES}
    for name, box in boxes.items():
        assert box[2] - box[0] > 200, name
        assert box[3] - box[1] > 100, name
        assert ink(picture, box) > 0.01, f"{name} is blank"
    corner = picture[2, 2].mean()
    assert corner < 0.3 if is_dark else corner > 0.8


def _emptied_figure(text: str) -> str:
    found = re.search(r'<figure id="plot-emptied".*?</figure>', text, re.DOTALL)
    assert found is not None
    return found.group(0)
