"""Other traffic than the one that was tuned for: where a tuned service may lose."""

from __future__ import annotations

from model_optimizer.records.tuning import TuningSpec
from model_optimizer.records.workload import LengthClass, Load, TrafficProfile

HELD_OUT_SHARE = 0.5
"""Other shapes are measured at half the tokens a second that the default holds: both should answer well there."""


def held_out_shapes(traffic: TrafficProfile, holds: float, spec: TuningSpec) -> tuple[TrafficProfile, ...]:
    """Two kinds of traffic that the search did not see: only the shortest prompts, and only the longest.

    Each at half the tokens a second that the reference holds (users: half of them, at least one).
    """
    lengths = sorted(traffic.lengths, key=lambda c: c.prompt_tokens)
    if len(lengths) < 2 or holds <= 0:
        return ()
    shapes = []
    for name, length in (("only short prompts", lengths[0]), ("only long prompts", lengths[-1])):
        tokens = length.prompt_tokens + (length.output_tokens or traffic.output_tokens)
        share = HELD_OUT_SHARE * (traffic.mean_prompt_tokens + traffic.output_tokens) / tokens
        load = (
            Load(rate_per_s=float(f"{holds * share:.3g}"))
            if spec.kind == "rate"
            else Load(concurrency=max(1, round(HELD_OUT_SHARE * holds)))
        )
        alone = LengthClass(prompt_tokens=length.prompt_tokens, weight=1.0, output_tokens=length.output_tokens)
        shapes.append(
            traffic.model_copy(
                update={
                    "id": name,
                    "lengths": (alone,),
                    "loads": (load,),
                    "seconds_per_load": spec.seconds_per_load,
                }
            )
        )
    return tuple(shapes)
