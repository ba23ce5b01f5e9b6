from tests.e2e.conftest import cli, new_home, tools

__all__ = ["cli", "new_home", "tools"]
