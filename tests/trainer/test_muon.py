"""Muon: orthogonal updates, the same direction as torch's, and who gets which parameter."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from agentrl.config.sft import SFTOptimConfig
from agentrl.trainer.muon import Muon, build_optimizers, orthogonalize


def test_singular_values_come_near_one():
    torch.manual_seed(0)
    matrices = torch.randn(3, 16, 40) * torch.tensor([1e-3, 1.0, 1e3])[:, None, None]
    values = torch.linalg.svdvals(orthogonalize(matrices))
    assert values.min() > 0.6
    assert values.max() < 1.3


@pytest.mark.parametrize("shape", [(24, 24), (12, 32), (32, 12)])
def test_updates_agree_with_torch(shape):
    """Torch iterates in bfloat16: the directions agree to its precision."""
    torch.manual_seed(1)
    start = torch.randn(shape)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    mine = Muon([ours], lr=0.02, momentum=0.95)
    reference = torch.optim.Muon([theirs], lr=0.02, momentum=0.95, weight_decay=0.0)
    for _ in range(5):
        gradient = torch.randn(shape)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mine.step()
        reference.step()
    moved, wanted = (ours - start).flatten(), (theirs - start).flatten()
    assert torch.cosine_similarity(moved, wanted, dim=0) > 0.999
    assert (moved.norm() / wanted.norm()).item() == pytest.approx(1.0, abs=0.02)


def test_only_matrices_are_taken():
    with pytest.raises(ValueError, match="matrices"):
        Muon([nn.Parameter(torch.zeros(3))], lr=0.1, momentum=0.9)


def test_a_parameter_without_gradient_stays():
    parameter = nn.Parameter(torch.ones(2, 2))
    Muon([parameter], lr=0.1, momentum=0.9).step()
    assert torch.equal(parameter.detach(), torch.ones(2, 2))


def test_muon_gets_the_matrices_of_the_layers_and_adamw_the_rest(tiny_model_dir):
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    adamw, muon = build_optimizers(model, SFTOptimConfig(name="muon"))
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    def owned(optimizer):
        return {names[id(p)] for group in optimizer.param_groups for p in group["params"]}

    assert owned(adamw) | owned(muon) == set(names.values())
    assert not owned(adamw) & owned(muon)
    assert all(".layers." in name and name.endswith("proj.weight") for name in owned(muon))
    assert "model.embed_tokens.weight" in owned(adamw)
    assert [group["base_lr"] for group in muon.param_groups] == [0.02]


def test_adamw_alone_gets_everything(tiny_model_dir):
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    (adamw,) = build_optimizers(model, SFTOptimConfig(weight_decay=0.1))
    assert sum(len(group["params"]) for group in adamw.param_groups) == len(list(model.parameters()))
    assert [group["weight_decay"] for group in adamw.param_groups] == [0.1, 0.0]
