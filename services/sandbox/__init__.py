"""The code sandbox: runs models' code isolated from the machine and from other runs, with SandboxFusion's protocol."""
