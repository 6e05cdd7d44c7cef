"""What the site needs beyond its pages: a hook of MkDocs, and an extension of Griffe. See `mkdocs.yml`.

Pages are written to be read in the repository too, so their links to files outside of `docs/` are paths; on the site
they lead to the repository. Docstrings name pages by their path (docs/how-to/own-sink.md); on the site these are
links.
A table of contents for language models, ``llms.txt`` (https://llmstxt.org), has every page of the nav with its
address and its first sentence.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
URLS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
API, INTERNALS = "reference/api/", "internals/"
_LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)#\s]+)(#[^)]*)?(?=\))")
_HEADING = re.compile(r"^# (.+)$", re.M)
_CODE = re.compile(r"^```.*?^```$", re.M | re.S)
_PARAGRAPH = re.compile(r"(?:^|(?<=\n\n))(?![ #|<:!\-\d])(?:[^\n]+\n?)+")
_MARKUP = re.compile(r"\[([^\]]*)\]\([^)]*\)|\*\*")
_DOCSTRING = re.compile(r"^::: tidestate\.([\w.]+)$", re.M)
_NAMED = re.compile(r"\bdocs/([\w/-]+\.md)\b")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the addresses from `pyproject.toml`, the only file that has them."""
    config.site_url = URLS["Documentation"]
    # A `repo_url` would make the theme ask GitHub for its stars.
    config.extra["social"] = [{"icon": "fontawesome/brands/github", "link": URLS["Repository"], "name": "Repository"}]
    return config


def on_nav(nav: Navigation, *, config: MkDocsConfig, files: Files) -> Navigation:
    """Add ``llms.txt`` to the site."""
    files.append(File.generated(config, "llms.txt", content="\n".join(contents(nav, config)) + "\n"))
    return nav


def contents(nav: Navigation, config: MkDocsConfig) -> Iterator[str]:
    """The lines of ``llms.txt``. What is for contributors is under Optional, which readers may skip."""
    home = nav.homepage.file.content_string if nav.homepage else ""
    yield from (f"# {config.site_name}", "", f"> {config.site_description}", "", plain(paragraph(home)))
    for section in nav.items:
        if isinstance(section, Section):
            yield from ("", f"## {'Optional' if section.title == 'Internals' else section.title}", "")
            yield from map(line_of, pages_of(section))
        elif isinstance(section, Page) and section is not nav.homepage:
            yield from ("", f"## {section.title}", "", line_of(section))


def pages_of(section: Section) -> Iterator[Page]:
    """All pages below it, in the order of the nav."""
    for child in section.children:
        if isinstance(child, Section):
            yield from pages_of(child)
        elif isinstance(child, Page):
            yield child


def line_of(page: Page) -> str:
    """A page, its address and what it is about: its first sentence, or for docstrings the names."""
    text = page.file.content_string
    heading = _HEADING.search(text)
    title = page.title or (heading[1] if heading else page.file.name)
    names = _DOCSTRING.findall(text)
    about = ", ".join(names) if names else re.split(r"(?<=[.?!])\s", plain(paragraph(text)))[0]
    return f"- [{plain(title)}]({page.canonical_url})" + (f": {about}" if about else "")


def paragraph(text: str) -> str:
    """The first one of prose."""
    found = _PARAGRAPH.search(_CODE.sub("", text))
    return found[0] if found else ""


def plain(text: str) -> str:
    """Without links and line breaks."""
    return " ".join(_MARKUP.sub(r"\1", text).split())


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to files outside of `docs/` to the repository, and rank internals behind all else in a search."""
    if page.file.src_uri.startswith(INTERNALS):
        page.meta["search"] = {"boost": 0.5}
    folder = posixpath.dirname(page.file.src_uri)

    def outside(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, link[2]))
        if path.startswith("docs/"):
            return link[0]
        return f"{link[1]}{URLS['Repository']}/blob/main/{path}{link[3] or ''}"

    return _LINK.sub(outside, markdown)


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links of the pages that docstrings name."""
    if not page.file.src_uri.startswith(API):
        return html

    def linked(name: re.Match[str]) -> str:
        file = files.get_file_from_path(name[1])
        return f'<a href="{file.url_relative_to(page.file)}">{name[0]}</a>' if file else name[0]

    return _NAMED.sub(linked, html)


class PublicNames(griffe.Extension):
    """The names of `tidestate` are those of `tidestate.operators`, which Griffe cannot see: they are loaded lazily.

    A class shows the methods of its bases that are not public as its own, and those of public bases are taken there.
    """

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        if pkg.name != "tidestate":
            return
        operators = pkg["operators"]
        public = {str(name): operators[str(name)] for name in operators.exports or ()}
        for name, value in public.items():
            pkg.set_member(name, griffe.Alias(name, value))
        classes = {name: value.final_target for name, value in public.items() if value.is_class}
        for kind in classes.values():
            taken = set(kind.members)
            for base in kind.mro():
                if base.name not in classes:
                    for name, member in base.members.items():
                        if not name.startswith("_") and name not in taken:
                            kind.set_member(name, griffe.Alias(name, member, parent=kind))
                taken |= set(base.all_members)
