"""The run configuration: pydantic models, one per section, and `load_config`, which reads recipes and overrides."""

from agentrl.config.loader import check_run_config, dump_config, load, load_config, note_idle
from agentrl.config.root import RunConfig

__all__ = ["RunConfig", "check_run_config", "dump_config", "load", "load_config", "note_idle"]
