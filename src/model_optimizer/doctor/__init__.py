"""From what was read on a host to findings: parsers and checks, no I/O."""
