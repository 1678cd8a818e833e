"""`python -m agentrl`: the same as the command `agentrl`."""

from agentrl.cli import main

if __name__ == "__main__":
    main()
