"""Names of settings in runs that earlier versions recorded."""

# Earlier names, with those of today.
_RENAMED = {"measure_own_cost": "measure_overhead"}


def current_names(settings_json: str) -> str:
    """Return a JSON object of settings with today's names."""
    for earlier, name in _RENAMED.items():
        settings_json = settings_json.replace(f'"{earlier}"', f'"{name}"')
    return settings_json
