"""All experts on one copy of the base: every adapted linear layer computes

    y = W x + B̂ (g ⊙ Â x)

with  Â = [A_1; ...; A_k]  (R, in),  B̂ = [s_1 B_1, ..., s_k B_k]  (out, R),  R = Σ r_i over the experts
that touch the layer, and a gate g: row b of the batch sees expert i with the coefficient g[b, i].
Two dense products whatever the number of experts. The bank knows no composition method.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from workbench.errors import WorkbenchError
from workbench.experts.lora import Expert


class ExpertBank:
    """Puts `experts` on `model` by forward hooks: the model's modules, parameters and state dict stay as
    they are, the bank does nothing outside `gated`, and `detach` removes it, as does the end of the bank's
    own life. Banks do not see each other.

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
        self._current = _Gate()  # what the hooks hold: holding the bank, they would keep it alive
        self._handles: list[RemovableHandle] = []
        weakref.finalize(self, _remove, self._handles)
        layers = {layer for expert in experts for layer in expert.layers}
        for layer, module in model.named_modules():
            if layer in layers:
                assert isinstance(module, nn.Linear)
                self._handles.append(
                    module.register_forward_hook(_StackedFactors(self._current, layer, module, experts))
                )

    def detach(self) -> None:
        """Removes the bank from the model, which is then exactly what it was."""
        _remove(self._handles)

    @contextmanager
    def gated(self, gate: Tensor) -> Iterator[None]:
        """Within it, row b of a forward pass sees expert i with coefficient gate[b, i]; gate: (rows, k)."""
        if gate.ndim != 2 or gate.shape[1] != len(self.names):
            raise ValueError(f"gate has shape {tuple(gate.shape)}, expected (rows, {len(self.names)})")
        before, self._current.gate = self._current.gate, gate
        try:
            yield
        finally:
            self._current.gate = before


class _Gate:
    gate: Tensor | None = None


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()


class _StackedFactors:
    """The hook of one linear layer: adds B̂ (g ⊙ Â x) to its output.

    Factors are held in the layer's dtype (float32 where that is no float: a quantized base) and follow the
    layer to another device or dtype; the gate is never rounded to less than float32.
    """

    def __init__(self, current: _Gate, layer: str, linear: nn.Linear, experts: Sequence[Expert]) -> None:
        self.current, self.layer = current, layer
        own = [(i, expert.layers[layer]) for i, expert in enumerate(experts) if layer in expert.layers]
        scaled = [f.B.to(torch.promote_types(f.B.dtype, torch.float32)) * f.scale for _, f in own]
        self.down = torch.cat([f.A for _, f in own])  # Â (R, in)
        self.up = torch.cat(scaled, dim=1)  # B̂ (out, R)
        self.owner = torch.tensor([i for i, f in own for _ in range(f.rank)])  # (R,)
        self._follow(linear.weight)

    def _follow(self, weight: Tensor) -> None:
        dtype = weight.dtype if weight.is_floating_point() else torch.float32
        if self.down.device != weight.device or self.down.dtype != dtype:
            self.down, self.up = self.down.to(weight.device, dtype), self.up.to(weight.device, dtype)
        self.owner = self.owner.to(weight.device)

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        gate = self.current.gate
        if gate is None:
            return output
        assert isinstance(module.weight, Tensor)
        self._follow(module.weight)
        (x,) = inputs
        x = x.to(self.down)
        exact = torch.promote_types(self.down.dtype, torch.float32)
        g = gate.to(self.down.device, exact)[:, self.owner]  # (rows, R)
        if x.ndim == 3 and len(x) == len(g):
            g = g[:, None, :]
        elif x.ndim == 2 and len(x) % len(g) == 0 and ".experts." not in self.layer:
            g = g.repeat_interleave(len(x) // len(g), dim=0)  # rows and positions flattened, as OPT does
        elif all(part is None or (part == part[:1]).all() for part in forward_ad.unpack_dual(g)):
            g = g[0]
        else:
            raise ValueError(
                f"layer '{self.layer}' got an input of shape {tuple(x.shape)}, in which the {len(g)} rows of "
                "the batch cannot be told apart"
            )
        return output + F.linear((g * F.linear(x, self.down)).to(x), self.up).to(output)
