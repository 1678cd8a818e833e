"""`agentrl doctor`: what is wrong with the installation, the machine and a run's configuration, and what to do."""
