"""What the README calls not built yet is not there: whoever builds it takes it out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from typer.main import get_command

from outlast import TaskContext
from outlast.cli.main import command_line
from outlast.engine.declaring import ToolOptions

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_what_is_called_not_built_is_not_there() -> None:
    said = README[README.index("- Not built yet") : README.index("## How it compares")]
    built: Any = get_command(command_line())
    named = set(re.findall(r"`outlast ([a-z]+)`", said))
    assert named == {"keys", "limits", "load", "plan", "relay"}
    assert not named & set(built.commands)
    context = set(re.findall(r"`task\.([a-z]+)`", said))
    assert context == {"artifact", "cite", "model"}
    assert not context & set(dir(TaskContext))
    options = set(re.findall(r"`([a-z_]+)=`", said))
    assert options == {"executor", "limits"}
    assert not options & set(ToolOptions.__annotations__)
