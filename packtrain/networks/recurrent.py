"""An LSTM over T rows whose state is cleared at every reset, without a Python loop over time.

The rows of each environment are split into segments at its resets. All segments run in one packed call: the first
of each environment starts from the carry, the others from zero. Carries are batch first, [B, layers, hidden].

If all rows before a reset are padding, no splitting is needed: an additional input, 1 in padding rows, closes the input
and the forget gate, so that the state after such a row is 0. Then the host need not know where resets are, and the
computation can be captured.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

Carry = tuple[Tensor, Tensor]
_CLOSED = -1e4  # added to close a gate: its sigmoid is 0 in float32
# With an additional input, cuDNN copies the weights in each call, which costs little compared with the products.
warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")


class ResettingLSTM(nn.Module):
    """`nn.LSTM` whose state is set to zero before each row that comes from a reset."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1):
        super().__init__()
        self.lstm = nn.LSTM(input_size, hidden_size, num_layers)

    def initial_carry(self, batch: int, device: torch.device | None = None) -> Carry:
        """Return zeros, [B, layers, hidden] twice."""
        shape = (batch, self.lstm.num_layers, self.lstm.hidden_size)
        return torch.zeros(shape, device=device), torch.zeros(shape, device=device)

    def forward(self, inputs: Tensor, first: Tensor, carry: Carry, padded: bool = False) -> tuple[Tensor, Carry]:
        """Run T rows.

        Args:
          inputs: [T, B, F].
          first: [T, B] bool, rows before which the state is cleared.
          carry: state before row 0, ([B, layers, hidden], [B, layers, hidden]).
          padded: all rows before a reset are padding, and their outputs are unused; only for one layer.

        Returns:
          outputs [T, B, hidden] and the carry after the last row.
        """
        keep = ~first[0].view(-1, 1, 1)
        h, c = ((state * keep).transpose(0, 1).contiguous() for state in carry)  # [layers, B, hidden]
        if padded and inputs.shape[0] > 1:
            outputs, (h, c) = self._closing(inputs, first, h, c)
            return outputs, (h.transpose(0, 1), c.transpose(0, 1))
        if inputs.shape[0] == 1 or not bool(first[1:].any()):
            outputs, (h, c) = self.lstm(inputs, (h, c))
            return outputs, (h.transpose(0, 1), c.transpose(0, 1))
        return self._segments(inputs, first, h, c)

    def _closing(self, inputs: Tensor, first: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Carry]:
        assert self.lstm.num_layers == 1, "an input closes the gates of one layer"
        later = first.flip(0).cummax(0).values.flip(0)  # [T, B] whether a reset is here or later
        padding = torch.cat([later[1:], torch.zeros_like(later[:1])]).unsqueeze(-1)
        inward, *others = [weight for weight in self.lstm._flat_weights if weight is not None]
        gates = torch.zeros_like(inward[:, :1])
        gates[: 2 * self.lstm.hidden_size] = _CLOSED  # the input and forget gates are the first two
        weights = [torch.cat([inward, gates], 1), *others]
        inputs = torch.cat([inputs, padding], -1)
        outputs, h, c = torch.lstm(inputs, (h, c), weights, True, 1, 0.0, self.training, False, False)
        return outputs, (h, c)

    def _segments(self, inputs: Tensor, first: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Carry]:
        steps, batch, _ = inputs.shape
        starts = first.clone()
        starts[0] = True
        # Column-major order lists the segments of each environment one after the other.
        segment = starts.t().reshape(-1).cumsum(0) - 1  # [B*T] → segment of each row
        count = int(segment[-1]) + 1
        begin = starts.t().reshape(-1).nonzero().squeeze(1)  # [S] first row of each segment, column-major
        lengths = torch.diff(begin, append=begin.new_tensor([batch * steps]))
        order = lengths.argsort(descending=True, stable=True)  # packed sequences must be sorted by decreasing length
        rank = torch.empty_like(order)
        rank[order] = torch.arange(count, device=order.device)
        position = torch.arange(batch * steps, device=begin.device) - begin[segment]  # row within its segment
        # A packed sequence lists all first rows, longest segment first, then all second rows, and so on.
        alive = (lengths.unsqueeze(0) > torch.arange(steps, device=lengths.device).unsqueeze(1)).sum(1)  # [T]
        alive = alive[alive > 0]
        offsets = alive.cumsum(0) - alive
        slot = offsets[position] + rank[segment]  # [B*T] column-major row → packed row
        flat = inputs.transpose(0, 1).reshape(batch * steps, -1)  # [T, B, F] → [B*T, F]
        packed = PackedSequence(flat[slot.argsort()], alive.cpu())
        at_start = begin % steps == 0  # segments that begin at row 0 take the carry
        column = begin // steps
        h0, c0 = (torch.where(at_start.view(1, -1, 1), state[:, column], 0.0)[:, order] for state in (h, c))
        outputs, (hn, cn) = self.lstm(packed, (h0.contiguous(), c0.contiguous()))
        out = outputs.data[slot].reshape(batch, steps, -1).transpose(0, 1)  # [B*T, H] → [T, B, H]
        last = rank[segment.view(batch, steps)[:, -1]]  # last segment of each environment
        return out, (hn[:, last].transpose(0, 1), cn[:, last].transpose(0, 1))
