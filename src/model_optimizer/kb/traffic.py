"""Named traffic profiles: what a service is asked for when its users have no log yet."""

from __future__ import annotations

from functools import cache

from model_optimizer.kb.load import data_folder, mapping, read_yaml, to_record, wrong
from model_optimizer.kb.names import unknown
from model_optimizer.records.workload import TrafficProfile


@cache
def traffic_profiles() -> tuple[TrafficProfile, ...]:
    """All named profiles, in the order of the file."""
    file = data_folder() / "traffic.yaml"
    entries = mapping(read_yaml(file), file, "profiles")
    found: dict[str, TrafficProfile] = {}
    for index, entry in enumerate(entries):
        profile = to_record(TrafficProfile, entry, file, ("profiles", index))
        if profile.id in found:
            raise wrong(file, ("profiles", index), f"profile {profile.id!r} is there twice")
        found[profile.id] = profile
    return tuple(found.values())


def traffic(name: str) -> TrafficProfile:
    """The profile of that name (case, ``_``, spaces do not matter). Raises ``UnknownName`` with the nearest names."""
    wanted = name.strip().lower().replace("_", "-").replace(" ", "-")
    for profile in traffic_profiles():
        if profile.id == wanted:
            return profile
    raise unknown("traffic profile", name, [profile.id for profile in traffic_profiles()])
