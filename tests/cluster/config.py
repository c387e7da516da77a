"""The config file of a stream's settings, for a job that is started elsewhere."""

from precede.streaming.settings import Settings

TEXTS = ("raw_topic", "ordered_topic", "dead_letter_topic", "progress_topic", "control_topic", "checkpoint", "delta")
NUMBERS = (
    "shards",
    "tasks",
    "history_every_s",
    "max_offsets_per_trigger",
    "ask_after_ms",
    "give_up_ms",
    "state_every_s",
)


def config_of(settings: Settings, **more: str) -> str:
    """The file; `more` are further settings that are texts."""
    texts = {"bootstrap": str(settings.bootstrap)} | {name: getattr(settings, name) for name in TEXTS} | more
    lines = [f'{name} = "{value}"' for name, value in texts.items()]
    lines += [f"{name} = {getattr(settings, name)}" for name in NUMBERS]
    if settings.trigger_ms is not None:
        lines.append(f"trigger_ms = {settings.trigger_ms}")
    lines += ["[spark]", *(f'"{name}" = "{value}"' for name, value in settings.spark.items())]
    return "\n".join(lines) + "\n"
