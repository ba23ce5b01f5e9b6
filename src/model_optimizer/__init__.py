"""Model-Optimizer: from a checkpoint to a validated, tuned inference service, with the evidence."""

__version__ = "0.1.0"
