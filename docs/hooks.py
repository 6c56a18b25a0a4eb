"""What `mkdocs build` adds to the pages beside this file: one for each case study, made from what the case declares and
from its shipped recordings, and a copy of each file of the repository that a page links to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from kernsearch import cases
from kernsearch.errors import FigureError
from kernsearch.report.case_plot import pictures
from kernsearch.report.case_text import markdown
from kernsearch.report.cases import verdict_line
from kernsearch.report.page import plain

ROOT = Path(__file__).resolve().parent.parent
NAV = "Cases"  # the part of the navigation that gets the pages
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)\)")


def on_config(config: Any) -> Any:
    """The pages of the cases in the navigation, after what is there by hand."""
    below = next(entry[NAV] for entry in config.nav if NAV in entry)
    below += [{name: f"cases/{name}.md"} for name in cases.cases()]
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """The pages of the cases and their figures, and copies of files that pages link to."""
    for name in cases.cases():
        text, drawn = case_page(name)
        files.append(File.generated(config, f"cases/{name}.md", content=text))
        for figure, svg in drawn.items():
            files.append(File.generated(config, f"cases/{figure}", content=svg))
    texts = [page.read_text("utf-8") for page in Path(config.docs_dir).glob("*.md")]
    for path in sorted({path for text in texts for _, path in OUTSIDE.findall(text)}):
        if (ROOT / path).is_file():
            files.append(File.generated(config, f"source/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(text: str, *, page: Any, config: Any, files: Any) -> str:
    """Links out of the folder lead to the copies; a folder is named only."""

    def inside(found: re.Match[str]) -> str:
        words, path = found.groups()
        return f"[{words}](source/{path})" if (ROOT / path).is_file() else f"`{path}`"

    return OUTSIDE.sub(inside, text)


def case_page(name: str) -> tuple[str, dict[str, str]]:
    """Markdown of a case and its figures (SVG by file name), a part for each shipped recording."""
    case = cases.find(name)
    lines = [f"# {name}\n", f"**Claim.** {plain(case.claim)}\n", f"**What may go wrong.** {plain(case.mechanism)}\n",
             f"A case of {case.op}, on {' and '.join(case.backends)}. To measure it, with a report in `{name}/`:\n",
             f"    kernsearch case {name} --device {case.backends[0]} --out {name}\n"]  # fmt: skip
    figures: dict[str, str] = {}
    recorded = cases.recordings.shipped(name)
    if not recorded:
        lines.append("No recording of it is shipped.\n")
    for device in recorded:
        data = cases.judged(cases.recording(cases.recordings.read(device, name, "arms"), name))
        try:
            drawn = pictures(data)
        except FigureError:  # without matplotlib the page has tables alone
            drawn = {}
        text = markdown(data, tuple(drawn)).replace("data.json", f"`cache/recordings/{device}/{name}.json`")
        for figure, svg in drawn.items():
            text = text.replace(f"]({figure})", f"]({name}-{device}-{figure})")
            figures[f"{name}-{device}-{figure}"] = svg
        lines += [f"## {plain(data['device']['name'])}\n", f"**Verdict: {plain(verdict_line(data))}**\n", _below(text)]
    return "\n".join(lines), figures


def _below(report: str) -> str:
    """A report as a part of a page: without title, claim and mechanism, a level deeper, in this Markdown's escapes."""
    report = re.sub(r"^## ", "### ", report[report.index("## Prediction") :], flags=re.M)
    return report.replace(r"\~", "~").replace(r"\<", "&lt;").replace(r"\&", "&amp;")
