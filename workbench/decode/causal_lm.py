"""The composed model as a transformers model: `forward` and `generate` as with any causal LM."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from workbench.decode.branches import BranchCache, Branches, check_experts
from workbench.errors import WorkbenchError
from workbench.experts.bank import ExpertBank
from workbench.experts.lora import read_expert
from workbench.methods import Plan, plan
from workbench.models import open_base

_REFUSED = {"past_key_values", "inputs_embeds", "output_attentions", "output_hidden_states"}


class ComposedLM(PreTrainedModel, GenerationMixin):
    """Its logits are the composed log-probabilities; its cache holds every branch.

    The base stays usable as it is: the experts act only within this model's forward.
    """

    # Attention is the base's business; the base has checked what it supports.
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True

    def __init__(self, base: PreTrainedModel, bank: ExpertBank, plan: Plan) -> None:
        super().__init__(copy.deepcopy(base.config))  # a shared configuration would leak settings
        self.base, self.bank = base, bank
        self.generation_config = copy.deepcopy(base.generation_config)
        self.generation_config.cache_implementation = None  # older Gemma checkpoints name one
        self.branches = Branches(base, bank, plan)
        self.eval()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: BranchCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """As in transformers. A cache must be one that this model returned: it has rows for every branch.

        Raises TypeError for other caches, and for inputs or outputs that a composition does not have.
        """
        for name in _REFUSED & kwargs.keys():
            if kwargs[name] is not None and kwargs[name] is not False:
                raise TypeError(f"a composed model takes no '{name}'")
        if cache is None and use_cache:
            cache = self.branches.new_cache()
        if cache is not None and not isinstance(cache, BranchCache):
            raise TypeError(
                f"cache is a {type(cache).__name__}; pass none, or the one that this model returned"
            )
        if attention_mask is None and cache is None:
            attention_mask = torch.ones_like(input_ids)  # else position_ids may be taken for packed sequences
        log_probs = self.branches.log_probs(input_ids, attention_mask, position_ids, cache, logits_to_keep)
        loss = None
        if labels is not None:
            items = kwargs.get("num_items_in_batch")
            loss = self.base.loss_function(log_probs, labels, log_probs.shape[-1], num_items_in_batch=items)
        output = CausalLMOutputWithPast(loss=loss, logits=log_probs, cache=cache)
        return output.to_tuple() if kwargs.get("return_dict") is False else output

    def generate(
        self, inputs: Tensor | None = None, generation_config: GenerationConfig | None = None, **kwargs: Any
    ) -> Any:
        """transformers' own `generate`, with a cache whose rows it can reorder."""
        settings = generation_config or self.generation_config
        if kwargs.get("cache_implementation") or settings.cache_implementation:
            raise WorkbenchError("a composed model has a cache of its own", "no cache_implementation")
        if kwargs.get("cache") is None and kwargs.get("use_cache", settings.use_cache) is not False:
            kwargs["cache"] = self.branches.new_cache()
        with self.branches.level():
            return super().generate(inputs, generation_config, **kwargs)

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.base.get_input_embeddings()

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        raise WorkbenchError("a composition is not one set of weights", "save the base and the adapters")


def compose(
    base: PreTrainedModel | str | Path,
    experts: Mapping[str, str | Path] | Sequence[str | Path] | str | Path,
    method: str = "logit",
    weights: Sequence[float] | None = None,
) -> ComposedLM:
    """`experts` (adapter folders or hub names, with names of your own if a mapping) on `base` (a causal LM of
    transformers, or the folder or hub name of one), combined by `method` with `weights` (λ, one for each
    expert; all 1 by default).

        lm = workbench.compose(model, {"math": "runs/math", "coding": "runs/coding"}, "logit")
        lm.generate(**tokenizer("Question: ...", return_tensors="pt"), max_new_tokens=64)

    Raises WorkbenchError for an unknown method, a wrong number of weights, an adapter that does not fit.
    """
    paths = [experts] if isinstance(experts, (str, Path)) else experts
    named = dict(paths) if isinstance(paths, Mapping) else {str(path): path for path in paths}
    if len({Path(path).expanduser().resolve() for path in named.values()}) < len(paths):
        raise WorkbenchError("the same expert is given twice", "each expert once; its weight can be 2")
    composed = plan(method, list(named), weights)
    read = [read_expert(name, str(path)) for name, path in named.items()]
    if not isinstance(base, (str, Path)):
        return ComposedLM(base, ExpertBank(base, read), composed)
    opened = open_base(str(base))
    check_experts(opened, read)
    return ComposedLM(opened.model, ExpertBank(opened.model, read), composed)
