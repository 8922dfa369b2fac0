"""Pages of source: a link of a document to a file of the project leads to a page that shows the file."""

import posixpath
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import download_reference
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform

_LANGUAGES = {".py": "python", ".cpp": "cpp", ".h": "cpp", ".toml": "toml", ".yaml": "yaml", ".xml": "xml"}


class LinkToPage(SphinxPostTransform):
    """Replaces what MyST makes of a link to a file, a download, by a link to the page."""

    default_priority = 5
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        """Called for each document."""
        folder = posixpath.dirname(self.env.docname) or "."
        for download in list(self.document.findall(download_reference)):
            path, _ = self.env.relfn2path(download["reftarget"], self.env.docname)
            link = nodes.reference("", "", *download.children, internal=True)
            link["refuri"] = posixpath.relpath(_page_of(path) + ".html", folder)
            download.replace_self(link)


def _page_of(path: str) -> str:
    return f"source/{path}"


def collect_files(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Remembers the files that documents link to, and has none copied as a download."""
    env.linked_files = sorted(map(str, env.dlfiles))
    env.dlfiles.clear()
    return []


def write_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yields a page for each of these files."""
    for path in app.env.linked_files:
        text = (Path(app.srcdir) / path).read_text()
        language = _LANGUAGES.get(Path(path).suffix, "none")
        code = app.builder.highlighter.highlight_block(text, language)
        yield _page_of(path), {"title": path, "body": f"<h1>{escape(path)}</h1>{code}"}, "page.html"


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_post_transform(LinkToPage)
    app.connect("env-updated", collect_files)
    app.connect("html-collect-pages", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
