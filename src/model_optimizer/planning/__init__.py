"""What could run where, how fast about, and at what cost: knowledge base and arithmetic, nothing started."""
