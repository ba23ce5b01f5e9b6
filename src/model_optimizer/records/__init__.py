"""Frozen values: everything that crosses a boundary is one of these. No record does I/O."""
