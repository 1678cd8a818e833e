"""`agentrl view`: a web page of runs, their curves and their conversations, down to the token."""
