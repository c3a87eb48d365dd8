"""The live page in a real browser, on a stack whose model's name is an attack."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.contract.ui.conftest import ADMIN_KEY, MODEL, Stack, playwright, unlock

pytestmark = [pytest.mark.contract, pytest.mark.timeout(600)]
expect = playwright.expect
expect.set_options(timeout=60_000)
PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}


def test_a_visitor_sees_the_shell_only(page: Any) -> None:
    expect(page.get_by_label("Key", exact=True)).to_be_focused()
    expect(page.locator("#board")).to_be_hidden()
    assert MODEL not in page.content()
    assert page.locator(".engine, .square, tr").count() == 0


def test_a_wrong_key_is_said_and_forgotten(page: Any) -> None:
    page.get_by_label("Key", exact=True).fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_text("not this frontend's admin key")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_the_key_is_in_the_tab_alone(page: Any) -> None:
    unlock(page)
    assert page.evaluate("Object.values(sessionStorage)") == [ADMIN_KEY]
    assert page.evaluate("localStorage.length + document.cookie.length") == 0
    assert ADMIN_KEY not in page.content()
    page.reload()
    page.locator(".square").first.wait_for()
    page.get_by_role("button", name="Forget key").click()
    expect(page.get_by_label("Key", exact=True)).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_engines_routes_and_table_are_shown(page: Any) -> None:
    unlock(page)
    expect(page.locator("#health")).to_have_text("healthy")
    assert page.locator(".engine .name b").all_text_contents() == ["p0", "d0", "d1"]
    assert page.locator(".square").count() == 270
    expect(page.locator("#mix")).to_contain_text("first-turn 3")
    expect(page.locator("#ttft svg")).to_have_attribute("aria-label", re.compile(r"median .* ms"))
    assert page.locator("#topology > svg path").count() > 0


def test_with_several_processes_it_says_that_the_turns_are_of_all(page: Any) -> None:
    def of_three(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"processes": 3})

    unlock(page)
    expect(page.locator("#window")).not_to_contain_text("processes")
    page.route("**/ui/data/overview*", of_three)
    expect(page.locator("#window")).to_contain_text("turns of all 3 processes, within")


def test_hostile_names_are_text(page: Any) -> None:
    unlock(page)
    expect(page.get_by_label("Model")).to_have_value(MODEL)
    page.locator("#decisions tbody tr").first.wait_for()
    assert page.locator("main img, main script, select img").count() == 0
    assert page.title() == "PPD"


def test_it_updates_by_itself(page: Any, stack: Stack) -> None:
    unlock(page)
    rows = page.locator("#decisions tbody tr")
    rows.first.wait_for()
    before = rows.first.get_attribute("data-key")
    stack.chat(2)
    expect(rows.first).not_to_have_attribute("data-key", before)
    page.get_by_role("button", name="Pause").click()
    held = rows.first.get_attribute("data-key")
    stack.chat(1)
    with page.expect_response("**/ui/data/overview*"):
        pass
    with page.expect_response("**/ui/data/overview*"):
        pass
    assert rows.first.get_attribute("data-key") == held


def test_a_decision_links_to_its_trace(page: Any) -> None:
    unlock(page)
    link = page.locator("#decisions tbody a").first
    assert re.fullmatch(r"http://jaeger\.example:16686/trace/[0-9a-f]{32}", link.get_attribute("href"))
    assert "noopener" in link.get_attribute("rel")


def test_the_table_is_walked_by_keyboard(page: Any) -> None:
    unlock(page)
    page.get_by_role("tab", selected=True).focus()
    page.keyboard.press("Tab")
    expect(page.locator('.square[data-slot="0"]')).to_be_focused()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    expect(page.locator('.square[data-slot="11"]')).to_be_focused()
    page.keyboard.press("Enter")
    cell = page.locator("#cell")
    expect(cell).to_contain_text("small/short_gen@1")
    expect(cell).to_contain_text("decide")
    expect(cell.locator("tbody tr")).to_have_count(2)
    expect(cell).to_contain_text("learned online")
    before = cell.locator(".sum").inner_text()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", selected=True)).to_be_focused()
    expect(cell.locator(".sum")).not_to_have_text(before)


def test_what_tab_reaches_shows_it_and_has_a_name(page: Any) -> None:
    unlock(page)
    page.locator(".skip").focus()
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        found = page.evaluate(
            """() => { const e = document.activeElement, s = getComputedStyle(e);
            return [e.id || e.className || e.tagName, s.outlineStyle, parseFloat(s.outlineWidth),
                    e.getAttribute("aria-label") || e.getAttribute("aria-labelledby")
                    || e.labels?.[0]?.textContent || e.textContent.trim()] }"""
        )
        if found[0] == "BODY":
            break
        assert found[1] == "solid", found
        assert found[2] >= 2, found
        assert found[3], found
        seen.add(found[0])
    assert {"model", "forget", "freeze", "show", "pause", "decisions"} <= seen


def test_going_back_asks_first_and_publishes_a_version(page: Any, stack: Stack) -> None:
    unlock(page)
    before = stack.ask("/health")["models"][MODEL]["table_version"]
    page.get_by_role("button", name="Freeze", exact=True).click()
    back = page.get_by_role("button", name=f"Roll back to version {before}", exact=True)
    back.click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#confirm")).to_be_hidden()
    page.get_by_role("button", name=f"Compare with version {before}", exact=True).click()
    expect(page.locator("#diff")).to_contain_text(f"v{before} against v{before + 1}")
    back.click()
    page.locator("#confirm-yes").click()
    expect(page.locator("#versions li").first).to_contain_text(f"v{before + 2}")
    expect(page.locator("#versions li").first).to_contain_text("in use")
    page.get_by_role("button", name="Unfreeze").click()
    expect(page.get_by_role("button", name="Freeze", exact=True)).to_be_visible()


def test_when_the_frontend_is_away_it_says_so_and_comes_back(page: Any) -> None:
    unlock(page)
    page.route("**/ui/data/overview*", lambda route: route.abort())
    expect(page.locator("#live")).to_contain_text("cannot be reached; again in")
    page.unroute("**/ui/data/overview*")
    expect(page.locator("#live")).to_have_text("live")


@pytest.mark.parametrize(
    "page", [PHONE, PHONE | {"color_scheme": "dark"}], indirect=True, ids=["light", "dark"]
)
def test_it_fits_a_phone(page: Any) -> None:
    unlock(page)
    page.locator("#decisions tbody tr").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.locator(".square").nth(45).tap()
    expect(page.locator("#cell")).to_contain_text("@")
    small = page.evaluate(
        """() => [...document.querySelectorAll("button, select, a")].filter((e) => e.offsetParent
        && !e.matches(".square, #decisions a, .skip") && e.getBoundingClientRect().height < 32)
        .map((e) => e.outerHTML)"""
    )
    assert small == []


@pytest.mark.parametrize(
    "page", [{}, {"color_scheme": "dark"}, PHONE], indirect=True, ids=["desktop", "dark", "phone"]
)
def test_what_it_looks_like(page: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A picture of each kind, to be looked at: in PPD_SCREENSHOTS, where that names a folder."""
    unlock(page)
    page.locator(".square").nth(45).click()
    page.locator("#decisions tbody tr").first.wait_for()
    file = Path(os.environ.get("PPD_SCREENSHOTS", tmp_path)) / f"ui-{request.node.callspec.id}.png"
    page.screenshot(path=file, full_page=True)
    assert file.stat().st_size > 30_000


@pytest.mark.parametrize("page", [{"color_scheme": "dark"}], indirect=True)
def test_it_is_dark_where_that_is_preferred(page: Any) -> None:
    unlock(page)
    red, green, blue = map(
        int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))
    )
    assert max(red, green, blue) < 60
