"""The settings tables of the READMEs are made from the code.

Descriptions in Chinese are written by hand, in the table itself. To write the rest anew:
python tests/unit/cli/test_readme_tables.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from ullage.base.config import SettingInfo, settings_of
from ullage.cli.settings import SERVE

ROOT = Path(__file__).parents[3]
SECTION = re.compile(r"(<!-- settings: .*? -->\n)(.*?)(<!-- /settings -->)", re.DOTALL)


ROW = re.compile(r"^\| `(\w+)` \| .*? \| (.*) \|$", re.MULTILINE)


def fresh_table(header: str, descriptions: Mapping[str, str] | None = None) -> str:
    """
    :param descriptions: by a setting's name, in the language of the table; those in the code are English
    """
    rows = [header, "|---|---|---|"]
    for cls in SERVE.values():
        for info in settings_of(cls).values():
            choices = f" One of {', '.join(f'`{choice}`' for choice in info.choices)}." if info.choices else ""
            description = f"{info.description}{choices}" if descriptions is None else descriptions.get(info.name, "")
            rows.append(f"| `{info.name}` | {default_text(info, english=descriptions is None)} | {description} |")
    return "\n".join(rows) + "\n"


def default_text(info: SettingInfo, *, english: bool) -> str:
    """A default that is described by words stands with the description in other languages."""
    return info.default_text if english or not info.shown_default else "见右"


def english(text: str) -> str:
    return SECTION.sub(lambda match: match[1] + fresh_table("| setting | default | what it does |") + match[3], text)


def chinese(text: str) -> str:
    """Keeps the descriptions that are there: a person writes them."""
    return SECTION.sub(
        lambda match: match[1] + fresh_table("| 设置 | 默认值 | 作用 |", dict(ROW.findall(match[2]))) + match[3], text
    )


READMES = {"README.md": english, "README.zh-CN.md": chinese}


@pytest.mark.parametrize("name", READMES)
def test_the_settings_table_is_up_to_date(name):
    text = (ROOT / name).read_text("utf-8")
    assert SECTION.search(text)
    assert READMES[name](text) == text


def test_every_setting_is_described_in_chinese():
    (table,) = (match[2] for match in SECTION.finditer((ROOT / "README.zh-CN.md").read_text("utf-8")))
    choices = [
        (info.name, choice) for cls in SERVE.values() for info in settings_of(cls).values() for choice in info.choices
    ]
    described = dict(ROW.findall(table))
    assert [(name, choice) for name, choice in choices if f"`{choice}`" not in described[name]] == []
    without = [name for name, description in described.items() if not re.search("[\u4e00-\u9fff]", description)]
    assert without == []


if __name__ == "__main__":
    for name, fresh in READMES.items():
        path = ROOT / name
        path.write_text(fresh(path.read_text("utf-8")), "utf-8")
