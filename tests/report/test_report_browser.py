"""The page of a report in headless Chromium: what it shows, does, and never requests."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ersac.report import page, server
from ersac.report.collect import collect_runs
from ersac.runs import run_dir
from ersac.runs.run_dir import Metrics

webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver")
FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run
    --disable-background-networking --disable-component-update --disable-sync
    --disable-dev-shm-usage --window-size=1280,1000"""
HOSTILE = "<img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Iterator[Any]:
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.get("about:blank")
    driver.get_log("performance")  # of the browser's own first page
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory) -> Path:
    """The report of four runs, of which one was stopped and one has hostile names."""
    home = tmp_path_factory.mktemp("four")
    for path in (runs.first, runs.other, runs.stopped):
        shutil.copytree(path, home / path.name)
    write_hostile_run(runs.second, home / HOSTILE)
    out = home.parent / f"{home.name}.html"
    page.write_report(collect_runs([home]), out)
    return out


def write_hostile_run(source: Path, to: Path) -> None:
    """Copy a run, with HTML in the name of a metric, in its command and in its versions."""
    shutil.copytree(source, to)
    stored = run_dir.read_finished_run(to)
    values = stored.metrics.values | {HOSTILE: stored.metrics.values["tau"]}
    summary = {name: v for name, v in stored.summary.items() if not name.endswith("sha256")}
    metrics = Metrics(stored.metrics.step, values)
    run_dir.write_results(to, stored.seeds, metrics, stored.map_snapshots, None, summary)
    fingerprint = json.loads((to / run_dir.FINGERPRINT).read_text())
    fingerprint |= {
        "command": ["ersac", "</script><script>window.hacked=2</script>"],
        "packages": {"<b>jax</b>": "</dd><script>window.hacked=3</script>"},
    }
    (to / run_dir.FINGERPRINT).write_text(json.dumps(fingerprint))


def open_page(driver: Any, url: str) -> None:
    driver.get_log("performance")  # of pages before
    driver.get(url)
    wait(lambda: driver.execute_script("return document.querySelector('#main-plot .main-svg')"))


def wait(condition: Any, seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def requests(driver: Any) -> set[str]:
    """The addresses that were requested since the last call, data of the page itself left out."""
    messages = (json.loads(row["message"])["message"] for row in driver.get_log("performance"))
    urls = {
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    }
    return {url for url in urls if not url.startswith(("data:", "blob:"))}


def errors(driver: Any) -> list[str]:
    return [row["message"] for row in driver.get_log("browser") if row["level"] == "SEVERE"]


def set_value(driver: Any, name: str, value: Any) -> None:
    script = """const item = document.getElementById(arguments[0]); item.value = arguments[1];
        item.dispatchEvent(new Event("input"));"""
    driver.execute_script(script, name, value)


def column(driver: Any, table: str, index: int) -> list[str]:
    script = """return [...document.getElementById(arguments[0]).tBodies].map(
        (body) => body.rows[0].cells[arguments[1]].textContent.trim())"""
    return driver.execute_script(script, table, index)


def test_the_report_of_four_runs(driver, report):
    open_page(driver, report.as_uri())
    assert errors(driver) == []
    assert requests(driver) == {report.as_uri()}
    assert driver.title == "4 runs · ersac report"
    states = column(driver, "runs-table", 1)
    assert sorted(states) == ["ended", "ended", "ended", "stopped"]
    check_slider(driver, report)
    check_legend(driver)
    check_sorting(driver)
    check_hostile_names(driver, report)
    check_accessible(driver)
    assert errors(driver) == []
    assert requests(driver) == set()


def check_slider(driver: Any, report: Path) -> None:
    """Every position of the slider shows the visits that were recorded then."""
    run = report.with_suffix("") / "first"
    set_value(driver, "map-run", str(run))
    snapshots = run_dir.read_finished_run(run).map_snapshots
    shown = "return document.getElementById('map-visits').data[0].customdata"
    for index in (0, len(snapshots) // 2, len(snapshots) - 1):
        set_value(driver, "frame", index)
        visits = driver.execute_script(shown)
        expected = np.where(np.tril(np.ones((6, 6))), snapshots[index].visits, -1).tolist()
        assert [[-1 if cell is None else cell for cell in row] for row in visits] == expected
        text = driver.find_element("id", "map-readout").text
        assert text.startswith(f"After episode {snapshots[index].episode:,}:")


def check_legend(driver: Any) -> None:
    """A click on the legend hides an agent, its button says so, and shows it again."""
    visible = """return document.getElementById('main-plot').data
        .filter((trace) => trace.legendgroup === "ersac, tau0 0.5").map((trace) => trace.visible)"""
    assert set(driver.execute_script(visible)) == {True}
    labels = [label.text for label in driver.find_elements("css selector", ".legendtext")]
    assert labels == ["ersac, tau0 0.03", "ersac, tau0 0.5"]
    driver.execute_script("document.getElementById('main-plot').scrollIntoView()")
    driver.find_elements("css selector", "#main-plot .legendtoggle")[1].click()
    wait(lambda: set(driver.execute_script(visible)) == {"legendonly"})
    (button,) = [
        button
        for button in driver.find_elements("css selector", "#agents button")
        if button.text == "ersac, tau0 0.5"
    ]
    assert button.get_attribute("aria-pressed") == "false"
    button.send_keys("\n")
    wait(lambda: set(driver.execute_script(visible)) == {True})


def check_sorting(driver: Any) -> None:
    """The buttons of the header sort by number, and once more the other way."""
    header = driver.find_elements("css selector", "#runs-table thead button")[5]
    assert header.text.startswith("episodes")
    for reverse in (False, True):
        driver.execute_script("arguments[0].click()", header)
        counts = [int(text.replace(",", "")) for text in column(driver, "runs-table", 5)]
        assert counts == sorted(counts, reverse=reverse)
        assert len(set(counts)) > 1
    order = driver.find_elements("css selector", "#runs-table thead th")[5]
    assert order.get_attribute("aria-sort") == "descending"


def check_hostile_names(driver: Any, report: Path) -> None:
    """HTML in names is text in tables, lists, titles and plots, and no script of theirs runs."""
    name = str(report.with_suffix("") / HOSTILE)
    assert name in column(driver, "runs-table", 0)
    driver.execute_script("document.querySelectorAll('.more').forEach((button) => button.click())")
    details = driver.find_element("id", "runs-table").text
    assert "'</script><script>window.hacked=2</script>'" in details
    assert "<b>jax</b> </dd><script>window.hacked=3</script>" in details
    set_value(driver, "map-run", name)
    set_value(driver, "quantity", HOSTILE)
    title = "return document.querySelector('#main-plot .ytitle').textContent"
    assert driver.execute_script(title) == HOSTILE
    assert driver.execute_script("return window.hacked ?? null") is None
    assert driver.execute_script("return document.querySelectorAll('main img').length") == 0
    set_value(driver, "quantity", "goals")


def check_accessible(driver: Any) -> None:
    """Every control has a label, every table a caption, every plot a description."""
    unlabelled = """return [...document.querySelectorAll("select, input")].filter(
        (item) => !item.labels.length).length"""
    assert driver.execute_script(unlabelled) == 0
    assert driver.execute_script(
        "return [...document.querySelectorAll('table')].every((table) => table.caption)"
    )
    assert driver.execute_script(
        "return [...document.querySelectorAll('[role=img]')].every((plot) => plot.ariaLabel)"
    )
    assert driver.find_element("id", "frame").get_attribute("type") == "range"


def test_a_phone_and_a_dark_room(driver, report):
    metrics = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    try:
        open_page(driver, report.as_uri())
        width = "return [document.documentElement.scrollWidth, innerWidth]"
        assert driver.execute_script(width) == [390, 390]
        background = "return getComputedStyle(document.body).backgroundColor"
        assert driver.execute_script(background) == "rgb(11, 20, 27)"
        font = "return document.getElementById('main-plot').layout.font.color"
        assert driver.execute_script(font) == "#e4edf3"
        assert errors(driver) == []
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_served_report_follows_its_runs(driver, runs, serve, tmp_path, monkeypatch):
    monkeypatch.setattr(server, "SCAN_SECONDS", 0.0)
    monkeypatch.setattr(server, "POLL_SECONDS", 0.2)
    shutil.copytree(runs.first, tmp_path / "runs" / "first")
    with serve([tmp_path / "runs"]) as port:
        url = f"http://127.0.0.1:{port}/"
        open_page(driver, url)
        assert column(driver, "runs-table", 1) == ["ended"]
        shutil.copytree(runs.stopped, tmp_path / "runs" / "second")
        wait(lambda: column(driver, "runs-table", 1) == ["ended", "stopped"])
        driver.get("about:blank")
    assert {address for address in requests(driver) if address != "about:blank"} <= {
        url,
        f"{url}content.json",
    }
    assert errors(driver) == []


@pytest.mark.slow
def test_a_thousand_runs(driver, runs, tmp_path):
    """Seconds are of processor time: this machine may be doing other things."""
    home = tmp_path / "runs"
    for number in range(1000):
        run = home / f"run-{number:04}"
        run.mkdir(parents=True)
        for name in (run_dir.SETTINGS, run_dir.FINGERPRINT, run_dir.SUMMARY, run_dir.RESULTS):
            shutil.copy(runs.first / name, run)
    started = time.process_time()
    written = page.write_report(collect_runs([home]), tmp_path / "report.html")
    print("written in", time.process_time() - started)
    assert time.process_time() - started < 10
    assert written["runs"] == written["ended"] == 1000
    assert written["bytes"] < 15e6
    driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    open_page(driver, (tmp_path / "report.html").as_uri())
    metrics = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    spent = {row["name"]: row["value"] for row in metrics}["TaskDuration"]
    print("drawn in", spent)
    assert spent < 5
    assert len(column(driver, "runs-table", 0)) == 1000
    assert errors(driver) == []
