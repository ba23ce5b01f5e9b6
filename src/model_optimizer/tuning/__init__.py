"""Which settings to try next, which load they hold, and whether a difference is real."""
