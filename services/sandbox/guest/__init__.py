"""Programs that run inside the sandbox, on the bare standard library; the server never imports what they import."""
