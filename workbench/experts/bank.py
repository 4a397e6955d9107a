"""All experts on one copy of the base: every adapted linear layer computes

    y = W x + B̂ (g ⊙ Â x)

with  Â = [A_1; ...; A_k]  (R, in),  B̂ = [s_1 B_1, ..., s_k B_k]  (out, R),  R = Σ r_i over the experts
that touch the layer, and a gate g: row b of the batch sees expert i with the coefficient g[b, i].
Two dense products whatever the number of experts. The bank knows no composition method.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from workbench.errors import WorkbenchError
from workbench.experts.lora import Expert


class ExpertBank:
    """Puts `experts` on `model` by forward hooks: the model's modules, parameters and state dict stay as
    they are, the bank does nothing outside `gated`, and `detach` removes it. Banks do not see each other.

    Raises AdapterError if an expert does not fit the model, WorkbenchError if two share a name.
    """

    def __init__(self, model: nn.Module, experts: Sequence[Expert]) -> None:
        names = [expert.name for expert in experts]
        for name in names:
            if names.count(name) > 1:
                raise WorkbenchError(f"two experts are called '{name}'", "one name each")
        for expert in experts:
            expert.check_fits(model)
        self.names = tuple(names)
        self._gate: Tensor | None = None
        self._handles: list[RemovableHandle] = []
        layers = {layer for expert in experts for layer in expert.layers}
        for layer, module in model.named_modules():
            if layer in layers:
                assert isinstance(module, nn.Linear)
                self._handles.append(
                    module.register_forward_hook(_StackedFactors(self, layer, module, experts))
                )

    def detach(self) -> None:
        """Removes the bank from the model, which is then exactly what it was."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @contextmanager
    def gated(self, gate: Tensor) -> Iterator[None]:
        """Within it, row b of a forward pass sees expert i with coefficient gate[b, i]; gate: (rows, k)."""
        if gate.ndim != 2 or gate.shape[1] != len(self.names):
            raise ValueError(f"gate has shape {tuple(gate.shape)}, expected (rows, {len(self.names)})")
        before, self._gate = self._gate, gate
        try:
            yield
        finally:
            self._gate = before

    @property
    def gate(self) -> Tensor | None:
        return self._gate


class _StackedFactors:
    """The hook of one linear layer: adds B̂ (g ⊙ Â x) to its output.

    Factors are held in the layer's dtype (float32 where that is no float: a quantized base).
    """

    def __init__(self, bank: ExpertBank, layer: str, linear: nn.Linear, experts: Sequence[Expert]) -> None:
        self.bank, self.layer = bank, layer
        own = [(i, expert.layers[layer]) for i, expert in enumerate(experts) if layer in expert.layers]
        weight = linear.weight
        dtype = weight.dtype if weight.is_floating_point() else torch.float32
        self.down = torch.cat([f.A for _, f in own]).to(weight.device, dtype)  # Â (R, in)
        scaled = [f.B.to(torch.promote_types(f.B.dtype, torch.float32)) * f.scale for _, f in own]
        self.up = torch.cat(scaled, dim=1).to(weight.device, dtype)  # B̂ (out, R)
        self.owner = torch.tensor([i for i, f in own for _ in range(f.rank)], device=weight.device)  # (R,)

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        gate = self.bank.gate
        if gate is None:
            return output
        (x,) = inputs
        x = x.to(self.down.device, self.down.dtype)
        g = gate.to(self.down.device, self.down.dtype)[:, self.owner]  # (rows, R)
        if x.ndim == 3 and len(x) == len(g):
            g = g[:, None, :]
        elif x.ndim == 2 and len(x) % len(g) == 0 and ".experts." not in self.layer:
            g = g.repeat_interleave(len(x) // len(g), dim=0)  # rows and positions flattened, as OPT does
        elif (g == g[:1]).all():
            g = g[0]
        else:
            raise ValueError(
                f"layer '{self.layer}' got an input of shape {tuple(x.shape)}, in which the {len(g)} rows of "
                "the batch cannot be told apart"
            )
        return output + F.linear(g * F.linear(x, self.down), self.up).to(output)
