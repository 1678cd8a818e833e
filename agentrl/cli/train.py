"""`agentrl train` and `agentrl sft`."""

from __future__ import annotations

from pathlib import Path

import typer


def train_command(recipe: str | Path | None, overrides: list[str]) -> None:
    """Run a training run to its end."""
    from agentrl.config import load_config

    # Before the trainer is imported: a typo is reported within a second, not after the import of torch and Ray.
    resolved = load_config(recipe, overrides)
    from agentrl.cli.demo.warm_start import prepare_if_missing
    from agentrl.trainer.run import train

    prepare_if_missing(resolved)
    train(resolved)


def dry_run(recipe: str | Path | None, overrides: list[str], cluster: str | None = None) -> None:
    """Print the resolved configuration, then what would run where as YAML comments: the output is itself a recipe."""
    from agentrl.cli.plan_command import show_dry_run

    show_dry_run(recipe, overrides, cluster)


def sft_command(recipe: str | Path | None, overrides: list[str], *, dry_run: bool = False) -> None:
    """Run supervised training to its end, or only check it and print the configuration."""
    from agentrl.config import dump_config, load
    from agentrl.config.idle_sft_keys import IDLE_SFT_KEYS
    from agentrl.config.sft import SFT_CHECKS, SFTConfig

    resolved = load(recipe, overrides, SFTConfig, SFT_CHECKS, IDLE_SFT_KEYS)
    from agentrl.trainer.sft import SFTTrainer

    trainer = SFTTrainer(resolved)
    if not dry_run:
        trainer.fit()
        return
    typer.echo(dump_config(resolved))
    for topic, text in trainer.plan():
        typer.echo(f"# {topic + ':':<14} {text}")


def recipe_and_overrides(
    config: str | None,
    overrides: list[str],
    config_path: str | None,
    config_name: str | None,
    config_dir: str | None,
    usual: str = "ppo_trainer",
) -> tuple[str | Path | None, list[str]]:
    """The recipe and the overrides of a command line, with Hydra's options for the former.

    Raises:
        ConfigError: the recipe is given twice, or `--config-path` names no recipe.
    """
    from agentrl.config.recipe_files import named_recipe
    from agentrl.errors import ConfigError

    recipe, left = split_arguments(config, overrides)
    if config_dir is not None:
        left = [f"hydra.searchpath=[file://{config_dir}]", *left]
    if config_path is None and config_name is None:
        return recipe, left
    if recipe is not None:
        raise ConfigError(f"got the recipe {recipe} and --config-path or --config-name, wanted one of them")
    return named_recipe(config_path, config_name, usual), left


def split_arguments(config: str | None, overrides: list[str]) -> tuple[str | None, list[str]]:
    """Recipe and overrides. A verl command has only overrides: its first argument is one, and the recipe is None."""
    if config is None:
        return None, overrides
    if "=" in config or config.startswith("~"):
        return None, [config, *overrides]
    return config, overrides
