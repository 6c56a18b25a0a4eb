from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernsearch import sources

BODY = """\
#include "part.h"
#define TWICE(x) ((x) + (x))
/* computes
   something */
float f(float a, float b) { return a - -b + TWICE(1.5e-3f); } // done
const char *s = "not // a comment /* at all */";
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "part.h").write_text("int part;\n")
    path = tmp_path / "k.c"
    path.write_text(BODY)
    return path


def changed(path: Path, old: str, new: str) -> str:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return sources.tokens(path)


@pytest.mark.parametrize(
    "old, new",
    [
        ("something", "something else, at more length"),
        (" // done", ""),
        ("a - -b", "a  -\n  -b"),
        ("{ return", "{\n\n\treturn"),
        ("float a, float b", "float a,float b"),
        ("a - -b", "a - /* minus */ -b"),
        ("((x) + (x))", "((x) \\\n + (x))"),
    ],
)
def test_comments_and_white_space_do_not_count(source, old, new):
    assert sources.tokens(source) == changed(source, old, new)


@pytest.mark.parametrize(
    "old, new",
    [
        ("a - -b", "a --b"),
        ("1.5e-3f", "1.5e-4f"),
        ("float a", "floata"),
        ("TWICE(x)", "TWICE (x)"),
        ("not // a", "not  // a"),
        ("at all */", "at all"),
        ("((x) + (x))\n", "((x)\n+ (x))\n"),
    ],
)
def test_every_other_change_counts(source, old, new):
    assert sources.tokens(source) != changed(source, old, new)


@given(st.lists(st.sampled_from([" ", "\t", "\n", "/* x */", "// x\n", " \\\n"]), min_size=1, max_size=6))
def test_any_gap_between_tokens_is_the_same_gap(gap):
    assert sources.normalized("int a ;") == sources.normalized("int a" + "".join(gap) + ";")


def test_project_headers_count_directly_or_not_and_cycles_end(source, tmp_path):
    (tmp_path / "part.h").write_text('#include "deep/er.h"\n')
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "er.h").write_text('#include "../part.h"\nint deeper;\n')
    before = sources.tokens(source)
    (tmp_path / "deep" / "er.h").write_text('#include "../part.h"\nlong deeper;\n')
    assert sources.tokens(source) != before


def test_the_common_headers_are_found_from_anywhere(source):
    before = sources.tokens(source)
    assert changed(source, '"part.h"', '"kernsearch.h"') != before
    assert len(list(sources._closure(source))) == 2


def test_the_generated_header_and_system_headers_count_by_name_only(source, tmp_path):
    changed(source, '"part.h"', '"ks_generated.h"\n#include <nowhere.h>')
    before = sources.tokens(source)
    (tmp_path / "ks_generated.h").write_text("int anything;\n")
    assert sources.tokens(source) == before


def test_tokens_do_not_depend_on_where_the_source_is(source, tmp_path):
    other = tmp_path / "else where"
    other.mkdir()
    for name in ("part.h", "k.c"):
        (other / name).write_text((tmp_path / name).read_text())
    assert sources.tokens(source) == sources.tokens(other / "k.c")


def test_sources_are_named_below_the_kernels_folder_or_absolutely(source):
    assert sources.path_of("common/c/kernsearch.h").is_file()
    assert sources.path_of(str(source)) == source


def test_a_source_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        sources.tokens(tmp_path / "nothing.c")
