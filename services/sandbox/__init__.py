"""The code sandbox: runs code of models apart from the machine and from each other, behind SandboxFusion's protocol."""
