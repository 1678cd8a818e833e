"""What every service has: standard routes, access control, logs, metrics and a graceful server."""
