"""The load test: prompts, arrivals, a streaming client that does not disturb what it measures, and the drive."""
