"""The knowledge base's front door: everything the rest asks of it, in one place."""

from __future__ import annotations

from model_optimizer.kb.compat import compat, cuda_knows, driver_runs, min_driver, newest_cuda, paired_driver
from model_optimizer.kb.engines import engine, engines, flag_in
from model_optimizer.kb.find import gpu, matching_gpus
from model_optimizer.kb.gpus import gpus
from model_optimizer.kb.prices import electricity, prices, usd_per_hour
from model_optimizer.kb.schemes import reason, reasons, scheme, schemes
from model_optimizer.kb.shapes import shape_refusals
from model_optimizer.kb.states import gates, state, too_old_for
from model_optimizer.kb.traffic import traffic, traffic_profiles

__all__ = [
    "compat",
    "cuda_knows",
    "driver_runs",
    "electricity",
    "engine",
    "engines",
    "flag_in",
    "gates",
    "gpu",
    "gpus",
    "matching_gpus",
    "min_driver",
    "newest_cuda",
    "paired_driver",
    "prices",
    "reason",
    "reasons",
    "scheme",
    "schemes",
    "shape_refusals",
    "state",
    "too_old_for",
    "traffic",
    "traffic_profiles",
    "usd_per_hour",
]
