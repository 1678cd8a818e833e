"""Structured logs: one JSON object per line on stderr."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

LOGGER = "agentrl.services"
_encode = json.JSONEncoder(default=str).encode  # `json.dumps` with a `default` makes an encoder for every line


class JsonLogFormatter(logging.Formatter):
    """Writes a record as `{time, level, logger, event, ...}`; the fields come from `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return _encode(line)


def log(level: int, event: str, **fields: Any) -> None:
    """Write one line with fields."""
    logger = logging.getLogger(LOGGER)
    if logger.isEnabledFor(level):  # `logger.log` would also look for the caller, whom no line names
        logger.handle(logger.makeRecord(LOGGER, level, "", 0, event, (), None, extra={"fields": fields}))


def set_up_logs(level: int = logging.INFO) -> None:
    """Send the services' and the HTTP server's records to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter())
    for name, lowest in ((LOGGER, level), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(lowest)
        logger.propagate = False
