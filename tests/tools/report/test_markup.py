"""overt/tools/report/markup.py: only elements make tags."""

from overt.tools.report.markup import Html, element, join, table


def test_markup_only_comes_from_elements() -> None:
    assert element("p", "<b>", class_='a"b', hidden=True, title=None) == (
        '<p class="a&quot;b" hidden>&lt;b&gt;</p>'
    )
    assert join(Html("<i>"), "<i>") == "<i>&lt;i&gt;"
    assert element("input", data_run=3) == '<input data-run="3">'


def test_a_table_names_its_rows_and_escapes_its_cells() -> None:
    made = table(["<key>", "value"], [["a&b", Html("<code>1</code>")]], "numbers")
    assert '<th scope="row">a&amp;b</th><td><code>1</code></td>' in made
    assert '<th scope="col">&lt;key&gt;</th>' in made
    assert 'aria-label="&lt;key&gt;"' in made
    assert isinstance(made, Html)
