"""What a page of ours is made of, for tests."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """Tags, what they load, and ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "srcset", "action"):
                self.loads.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def loads_nothing(self) -> bool:
        """All that it names is in itself, under names of their own."""
        inside = all(load.startswith("#") and load[1:] in self.ids for load in self.loads)
        return inside and len(self.ids) == len(set(self.ids)) and not {"script", "link", "img", "iframe"} & {*self.tags}
