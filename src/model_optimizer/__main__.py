"""``python -m model_optimizer``."""

from model_optimizer.cli.app import main

if __name__ == "__main__":
    main()
