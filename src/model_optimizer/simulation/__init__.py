"""What an engine would do with a load: its scheduler and fitted step times, in milliseconds instead of minutes."""
