"""One screen for every error: what, cause, fix; no traceback for what a user can cause."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

from model_optimizer import __version__
from model_optimizer.errors import ModelOptimizerError

EXIT_BUG = 70
EXIT_INTERRUPTED = 130


def error_screen(app: Callable[..., Any]) -> int:
    """Run the app and turn whatever happens into an exit code.

    0: done (for ``run``: a winner meets the SLO). 1: everything worked and nothing meets the SLO. 2-5: errors.py.
    70: a bug, with a file to send us. 130: Ctrl-C.
    """
    try:
        result = app(standalone_mode=False)
    except ModelOptimizerError as error:
        show_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        print("\nstopped; what was finished is kept, the same line continues", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (the reader went away; nothing left to say)
        return 0
    except Exception as error:  # noqa: BLE001 (the last line of defence: a bug becomes a file, not a wall of text)
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # the parser's own: unknown option, …
            context = getattr(error, "ctx", None)
            usage = f"{context.get_usage()}\n" if context is not None else ""
            print(f"{usage}{error.format_message()}", file=sys.stderr)
            return 2
        if type(error).__name__ == "Abort":
            return EXIT_INTERRUPTED
        return _crash(error)
    return result if isinstance(result, int) else 0


def show_error(error: ModelOptimizerError) -> None:
    """The error for people on stderr; as data on stdout where ``--json`` was asked for."""
    if "--json" in sys.argv:
        import orjson

        print(orjson.dumps(error.as_dict(), option=orjson.OPT_INDENT_2).decode())
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    console.print(Text.assemble((type(error).__name__, "bold red"), "  ", (error.what, "bold")))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", min_width=7)
    table.add_column(overflow="fold")
    table.add_row("  cause", Text(error.cause))
    for line in error.evidence[:12]:
        table.add_row("", Text(line, style="dim"))
    table.add_row("  fix", Text(error.fix, style="green"))
    if error.log:
        table.add_row("  log", Text(error.log))
    console.print(table)


def _crash(error: BaseException) -> int:
    lines = [
        f"model-optimizer {__version__}, Python {platform.python_version()}, {platform.platform()}",
        f"command: {' '.join(sys.argv)}",
        "",
        *traceback.format_exception(error),
    ]
    with tempfile.NamedTemporaryFile("w", prefix="model-optimizer-crash-", suffix=".txt", delete=False) as file:
        file.write("\n".join(lines))
    print(f"This is a bug in Model-Optimizer, not a mistake of yours: {type(error).__name__}: {error}", file=sys.stderr)
    print(f"  fix  please report it with this file: {file.name}", file=sys.stderr)
    return EXIT_BUG
