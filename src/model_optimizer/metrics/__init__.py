"""Arithmetic on what was measured: definitions, percentiles, judgement. No I/O."""
