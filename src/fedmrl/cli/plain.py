"""Groups of commands whose help is plain text."""

from collections.abc import Callable
from typing import Any

import click
import typer
from typer.core import TyperCommand, TyperGroup


class _PlainHelp(click.Command):
    def get_help(self, ctx: click.Context) -> str:
        """Removes the backslashes that typer puts before brackets for rich, which does not render this help."""
        return super().get_help(ctx).replace("\\[", "[")


class PlainCommand(_PlainHelp, TyperCommand):
    """A command with plain help."""


class PlainGroup(_PlainHelp, TyperGroup):
    """A group of commands with plain help."""


class Commands(typer.Typer):
    """A group of commands, to which functions are added by `command`."""

    def __init__(self, cls: type[PlainGroup] = PlainGroup, **settings: Any) -> None:
        context = {"max_content_width": 120}
        super().__init__(cls=cls, no_args_is_help=True, rich_markup_mode=None, context_settings=context, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Adds a function as a command."""
        return super().command(name, cls=PlainCommand, **settings)
