"""What the engines installed here say about themselves; asked once, then remembered with the environment."""

from __future__ import annotations

from model_optimizer.errors import StageFailure
from model_optimizer.host.engine_facts import installed_engine, readable_engines
from model_optimizer.records.knowledge import InstalledEngine
from model_optimizer.stages.context import Context


def installed_facts(ctx: Context) -> dict[str, InstalledEngine]:
    """By the knowledge base's names. An installation that does not answer is left to the tables, with a note."""
    found = {}
    for engine in readable_engines():
        try:
            facts = installed_engine(ctx.toolbox, engine, emit=ctx.emit)
        except StageFailure as failure:
            ctx.emit("note", text=f"{engine} does not say what it can do ({failure.cause}); the tables are used")
            continue
        if facts is not None:
            found[engine] = facts
    return found
