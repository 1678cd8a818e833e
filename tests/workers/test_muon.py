"""Muon: orthogonal updates, the same direction as torch's, and who gets which parameter."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from agentrl.config.sft import SFTOptimConfig
from agentrl.workers.muon import make_optimizer, muon_step, orthogonalize


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
    buffer = torch.zeros(shape)
    reference = torch.optim.Muon([theirs], lr=0.02, momentum=0.95, weight_decay=0.0)
    for _ in range(5):
        gradient = torch.randn(shape)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        muon_step({ours: buffer}, lr=0.02, momentum=0.95)
        reference.step()
    moved, wanted = (ours - start).flatten(), (theirs - start).flatten()
    assert torch.cosine_similarity(moved, wanted, dim=0) > 0.999
    assert (moved.norm() / wanted.norm()).item() == pytest.approx(1.0, abs=0.02)


def test_a_parameter_without_gradient_stays():
    parameter = nn.Parameter(torch.ones(2, 2))
    muon_step({parameter: torch.zeros(2, 2)}, lr=0.1, momentum=0.9)
    assert torch.equal(parameter.detach(), torch.ones(2, 2))


def test_muon_gets_the_matrices_of_the_layers_and_adamw_the_rest(tiny_model_dir):
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    optimizer = make_optimizer(model, SFTOptimConfig(name="muon"), 1.0)
    state = optimizer.state_tensors()
    by_muon = {name.removeprefix("momentum_buffer.") for name in state if name.startswith("momentum_buffer.")}
    by_adamw = {name.removeprefix("exp_avg.") for name in state if name.startswith("exp_avg.")}
    assert by_muon | by_adamw == {name for name, _ in model.named_parameters()}
    assert not by_muon & by_adamw
    assert all(".layers." in name and name.endswith("proj.weight") for name in by_muon)
    assert "model.embed_tokens.weight" in by_adamw


def test_both_follow_one_schedule(tiny_model_dir):
    """At half of its peak, a matrix of Muon moves half as far."""
    moved = []
    for lr in (1e-3, 5e-4):
        torch.manual_seed(2)
        model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
        optimizer = make_optimizer(model, SFTOptimConfig(name="muon", lr=1e-3), 1e9)
        weight = model.model.layers[0].mlp.up_proj.weight
        before = weight.detach().clone()
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape)
        optimizer.step(lr)
        moved.append(float((weight.detach() - before).norm()))
    assert moved[1] == pytest.approx(moved[0] / 2, rel=1e-4)


def test_adamw_alone_gets_everything(tiny_model_dir):
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    optimizer = make_optimizer(model, SFTOptimConfig(weight_decay=0.1), 1.0)
    groups = optimizer.optimizer.param_groups
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
