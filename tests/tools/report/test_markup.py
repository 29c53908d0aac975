"""overt/tools/report/markup.py: no text becomes markup."""

import json

from overt.tools.report.markup import Html, element, join, table
from overt.tools.report.page import embed


def test_markup_only_comes_from_elements() -> None:
    assert element("p", "<b>", class_='a"b', hidden=True, title=None) == (
        '<p class="a&quot;b" hidden>&lt;b&gt;</p>'
    )
    assert join(Html("<i>"), "<i>") == "<i>&lt;i&gt;"
    assert element("input", data_run=3) == '<input data-run="3">'
    assert json.loads(embed({"a": "</script>\u2028&"})) == {"a": "</script>\u2028&"}
    assert not set("<>&\u2028") & set(embed("</script>\u2028&"))


def test_a_table_names_its_rows_and_scrolls_by_itself() -> None:
    html = table(["name", "value"], [["<a>", "1"], ["b", Html("<i>2</i>")]], "numbers")
    assert '<th scope="row">&lt;a&gt;</th><td>1</td>' in html
    assert "<td><i>2</i></td>" in html
    assert html.startswith('<div class="scroll" tabindex="0" role="region" aria-label="name">')
    assert '<table class="numbers">' in html
