"""Notes and files are what optuna-dashboard itself reads from a study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernsearch.search import notes
from kernsearch.search.notes import Page
from kernsearch.search.opening import artifacts_of
from kernsearch.search.study import Study

note = pytest.importorskip("optuna_dashboard._note")
backend = pytest.importorskip("optuna_dashboard.artifact._backend")


class _Trial:
    _trial_id = 7


def files(attrs: dict[str, Any]) -> dict[str, str]:
    return {f["filename"]: f["artifact_id"] for f in backend.list_trial_artifacts(attrs, {}, _Trial())}


TEXTS = st.tuples(st.text(max_size=3), st.integers(0, 3000)).map(lambda drawn: drawn[0] * drawn[1])


@given(st.lists(TEXTS, min_size=1, max_size=4), st.sampled_from([None, 7]))
def test_the_last_note_is_read_back_whatever_was_there(texts: list[str], trial: int | None) -> None:
    attrs: dict[str, Any] = {}
    for text in texts:
        changed = notes.attributes(Page(text), trial, attrs)
        assert all(len(value) <= 2000 for key, value in changed.items() if "note_str" in key)
        attrs |= changed
        assert note.get_note_from_system_attrs(attrs, trial)["body"] == text
    assert notes.attributes(Page(texts[-1]), trial, attrs) == {}


def test_a_new_note_has_a_new_version() -> None:
    attrs = notes.attributes(Page("one"), None, {})
    attrs |= notes.attributes(Page("two"), None, attrs)
    assert note.get_note_from_system_attrs(attrs, None) == {"version": 2, "body": "two"}


def test_files_that_changed_take_the_place_of_the_old() -> None:
    attrs = notes.attributes(Page("", {"a.c": "old", "b.h": "same"}), 7, {})
    assert files(attrs) == {"a.c": notes.identity("old"), "b.h": notes.identity("same")}
    changed = notes.attributes(Page("", {"a.c": "new", "b.h": "same"}), 7, attrs)
    assert len(changed) == 2
    assert files(attrs | changed) == {"a.c": notes.identity("new"), "b.h": notes.identity("same")}


def test_a_long_file_is_cut_and_says_so() -> None:
    assert notes.shortened("x" * 10) == "x" * 10
    assert len(notes.shortened("x" * (2 << 20))) < (1 << 20) + 100
    assert notes.shortened("x" * (2 << 20)).endswith("... cut here\n")


@pytest.mark.parametrize("name", ["runs.db", "runs.log"])
def test_pages_are_written_and_files_kept_beside_the_storage(tmp_path: Path, name: str) -> None:
    url = str(tmp_path / name)
    study = Study(url, "toy #0", ("plain",), {"B": (1, 2)})
    id, number = study.add("plain", {"B": 1}, "measured", {}, 1e-3)
    for text in ("first", "second"):
        study.annotate({None: Page(f"# {text}"), number: Page("# trial", {"a.c": text})})
    attrs = study._storage.get_study_system_attrs(study._id)
    study.close()
    assert note.get_note_from_system_attrs(attrs, None)["body"] == "# second"
    assert note.get_note_from_system_attrs(attrs, id)["body"] == "# trial"
    assert (artifacts_of(url) / notes.identity("second")).read_text() == "second"


def test_a_folder_that_cannot_be_made_costs_the_files_and_no_more(tmp_path: Path) -> None:
    url = str(tmp_path / "runs.db")
    artifacts_of(url).write_text("in the way")
    study = Study(url, "toy #0", ("plain",), {"B": (1, 2)})
    id, number = study.add("plain", {"B": 1}, "measured", {}, 1e-3)
    study.annotate({number: Page("# trial", {"a.c": "text"})})
    attrs = study._storage.get_study_system_attrs(study._id)
    study.close()
    assert note.get_note_from_system_attrs(attrs, id)["body"] == "# trial"
    assert not any("artifacts" in key for key in attrs)
