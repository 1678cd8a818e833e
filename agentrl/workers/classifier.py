"""Reward models: which folders are classifiers with one label, and the modules that score whole conversations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import nn

from agentrl.config.actor import BackboneConfig, FSDPConfig
from agentrl.config.reward_model import ClassifierConfig
from agentrl.errors import ConfigError
from agentrl.hub import check_model, model_folder
from agentrl.workers.loading import load_pretrained, start_pretrained
from agentrl.workers.meta_start import MetaWeights
from agentrl.workers.micro_batches import MicroBatch
from agentrl.workers.token_nets import TokenNet

_KINDS: dict[str, Literal["sequence", "token"]] = {
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "token",
}
_PAST_PADDING = frozenset(
    {
        *("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "camembert", "xmod"),
        *("data2vec-text", "ibert", "longformer", "mpnet", "luke", "lilt"),
    }
)
"""Types whose first position is that behind the padding's id: of RoBERTa's 514 positions, a text has 2 to 513."""
_WANTED = "wanted a classifier with one label (AutoModelForSequenceClassification, num_labels=1)"


@dataclass(frozen=True, slots=True)
class ClassifierInfo:
    """What the configuration of a classifier says.

    Attributes:
        kind: `sequence`: one score for a text; `token`: one for each token, of which the last counts.
        positions: most tokens that it can read; None: not said.
        vocab_size: number of ids that it knows; None: not said.
        pad_id: id of padding, at which a sequence classifier does not look for the end of a text; None: it has none.
        is_generic: whether transformers builds it as a causal transformer with a linear head.
    """

    kind: Literal["sequence", "token"]
    positions: int | None
    vocab_size: int | None
    pad_id: int | None
    is_generic: bool


def read_classifier(model: ClassifierConfig) -> ClassifierInfo:
    """Look at the folder of a reward model, without its weights.

    Raises:
        ConfigError: the folder holds no model, or one that is not a classifier with one label.
    """
    from transformers import AutoConfig
    from transformers.modeling_layers import GenericForSequenceClassification, GenericForTokenClassification

    check_model(model.path)
    try:
        config = AutoConfig.from_pretrained(model_folder(model.path), trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"the configuration in '{model.path}' cannot be read: {error}") from error
    names = list(config.architectures or [])
    kind = next((kind for end, kind in _KINDS.items() if any(name.endswith(end) for name in names)), None)
    if kind is None:
        raise ConfigError(f"'{model.path}' holds {', '.join(names) or 'a model of no known class'}, {_WANTED}")
    if config.num_labels != 1:
        raise ConfigError(f"the classifier in '{model.path}' has {config.num_labels} labels, {_WANTED}")
    text = config.get_text_config()
    positions, vocab_size = getattr(text, "max_position_embeddings", None), getattr(text, "vocab_size", None)
    pad_id = getattr(text, "pad_token_id", None)
    if positions is not None and text.model_type in _PAST_PADDING:
        positions -= (pad_id or 0) + 1
    model_class = _auto_class(kind)._model_mapping.get(type(config), None)
    if model_class is None and not model.trust_remote_code:
        raise ConfigError(f"'{model.path}': transformers has no classifier of the type '{config.model_type}'")
    generic = (GenericForSequenceClassification, GenericForTokenClassification)
    is_generic = isinstance(model_class, type) and issubclass(model_class, generic)
    return ClassifierInfo(kind, positions, vocab_size, pad_id, is_generic)


def _auto_class(kind: Literal["sequence", "token"]) -> Any:
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    return AutoModelForSequenceClassification if kind == "sequence" else AutoModelForTokenClassification


def require_whole(model: ClassifierConfig, fsdp: FSDPConfig) -> None:
    """Refuse to spread rows or matrices of a classifier that is run whole.

    Raises:
        ConfigError: `fsdp` asks for it.
    """
    sp, tp = fsdp.ulysses_sequence_parallel_size, fsdp.tensor_parallel_size
    if fsdp.copies > 1:
        raise ConfigError(
            f"reward_model.fsdp_config: got ulysses_sequence_parallel_size {sp} and tensor_parallel_size {tp}, but the "
            f"classifier in '{model.path}' is no causal transformer with a linear head, so ranks cannot share its rows "
            "or matrices: set both to 1"
        )


def start_classifier(
    model: ClassifierConfig, info: ClassifierInfo, dtype: torch.dtype
) -> tuple[ScoreNet, MetaWeights | None]:
    """A net of a reward model that gives one score per row, and what fills it; see `start_pretrained`.

    Args:
        model: its folder.
        info: what `read_classifier` found there.
        dtype: of its weights.

    Raises:
        ConfigError: the model cannot be loaded, or its head is missing.
    """
    if not info.is_generic:
        classifier = load_pretrained(_auto_class(info.kind), _backbone(model), dtype).eval()
        return (ScoreNet(classifier) if is_plain(classifier, info) else WholeClassifierNet(classifier, info)), None
    classifier, weights = start_pretrained(_auto_class(info.kind), _backbone(model), dtype)
    return ScoreNet(classifier.eval()), weights


def load_whole_classifier(model: ClassifierConfig, info: ClassifierInfo, dtype: torch.dtype) -> ScoreNet:
    """As `start_classifier`, of a model that is no causal transformer with a linear head."""
    return WholeClassifierNet(load_pretrained(_auto_class(info.kind), _backbone(model), dtype).eval(), info)


def _backbone(model: ClassifierConfig) -> BackboneConfig:
    return BackboneConfig(path=model.path, trust_remote_code=model.trust_remote_code)


class ScoreNet(TokenNet):
    """Scores of the last token of each row: a causal transformer with a linear head."""

    def __init__(self, classifier: Any) -> None:
        super().__init__()
        self.classifier = classifier

    @property
    def backbone(self) -> Any:
        """The transformer."""
        return self.classifier.base_model

    def values(self, micro: MicroBatch) -> torch.Tensor:
        """Scores (K,) in float32 of the states at `micro.sources`, one per row."""
        return cast(torch.Tensor, self.classifier.score(self.states(micro))).float().flatten()


class WholeClassifierNet(ScoreNet):
    """Scores of a classifier of any shape (BERT and its relatives), which is told where each row ends."""

    def __init__(self, classifier: Any, info: ClassifierInfo) -> None:
        super().__init__(classifier)
        self._info = info

    def values(self, micro: MicroBatch) -> torch.Tensor:
        """Scores (K,) in float32, one per row of `(b, T)`."""
        rows, width = micro.input_ids.shape
        # Rows of 2 and 3 tokens in (2, 3): their last tokens lie at 1 and 5, which is 1 and 5 - 1 * 3 = 2 in their row.
        last = micro.sources - torch.arange(rows, device=micro.sources.device) * width
        seen = torch.arange(width, device=last.device) <= last[:, None]
        ids = micro.input_ids.masked_fill(~seen, self._info.pad_id or 0)
        logits = self.classifier(input_ids=ids, attention_mask=seen.long()).logits
        if self._info.kind == "token":
            logits = logits[torch.arange(rows, device=last.device), last]
        return cast(torch.Tensor, logits).float().flatten()


@torch.no_grad()
def is_plain(classifier: Any, info: ClassifierInfo) -> bool:
    """Whether the score is a linear head on the state of the last token, which later tokens do not change."""
    head = getattr(classifier, "score", None)
    if not isinstance(head, nn.Linear):
        return False
    first = [i for i in range(5) if i != info.pad_id][:4]
    ids = torch.tensor([first], device=head.weight.device)
    states = classifier.base_model(input_ids=ids).last_hidden_state
    shorter = classifier.base_model(input_ids=ids[:, :-1]).last_hidden_state
    own, plain = classifier(input_ids=ids).logits.flatten()[-1], head(states)[0, -1, 0]
    scale = float(states.float().abs().max())
    causal = torch.allclose(states[:, :-1].float(), shorter.float(), rtol=1e-2, atol=1e-2 * scale)
    return causal and torch.allclose(own.float(), plain.float(), rtol=1e-3, atol=1e-3)
