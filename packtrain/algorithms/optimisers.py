"""The optimisers that the algorithms share; schedules of learning rates are in `equations/schedules.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from packtrain import check
from packtrain.errors import ConfigError

OPTIMISERS = ("rmsprop", "rmsprop_tf", "adam")


class RMSPropTF(torch.optim.Optimizer):
    """RMSProp as TensorFlow defines it, and as the IMPALA paper used it.

        ms  ← alpha · ms + (1 − alpha) · g²               ms starts at 1
        mom ← momentum · mom + lr · g / sqrt(ms + eps)    mom starts at 0
        w   ← w − mom

    Three differences from torch.optim.RMSprop: ε stands inside the square root, the second moment starts at 1 rather
    than 0 (early steps are small rather than large), and momentum accumulates steps that contain the learning rate,
    so a changed rate does not rescale what is already moving. Equal hyper-parameters do not make an equal optimiser.

    All parameters of a group are updated together by multi-tensor calls. A group's "lr" may be a 0-d tensor on the
    parameters' device, so that a captured update can read a rate that changes.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        momentum: float = 0.0,
    ):
        for name, value in (("lr", lr), ("eps", eps), ("momentum", momentum)):
            if not value >= 0.0:
                raise ValueError(f"{name} is {value}, expected at least 0")
        if not 0.0 <= alpha <= 1.0:
            raise ValueError(f"alpha is {alpha}, expected between 0 and 1")
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; return the result of `closure`, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._step_group(group, parameters)
        return loss

    def _step_group(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        use_momentum = group["momentum"] > 0.0
        for parameter in parameters:
            state = self.state[parameter]
            if "square_avg" not in state:
                state["square_avg"] = torch.ones_like(parameter, memory_format=torch.preserve_format)
            if use_momentum and "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        gradients: Any = [parameter.grad for parameter in parameters]
        square_avgs = [self.state[parameter]["square_avg"] for parameter in parameters]

        torch._foreach_mul_(square_avgs, group["alpha"])
        torch._foreach_addcmul_(square_avgs, gradients, gradients, value=1.0 - group["alpha"])
        denominators: Any = torch._foreach_add(square_avgs, group["eps"])
        torch._foreach_sqrt_(denominators)
        steps: Any = torch._foreach_div(gradients, denominators)
        torch._foreach_mul_(steps, group["lr"])
        if use_momentum:
            momentum_buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
            torch._foreach_mul_(momentum_buffers, group["momentum"])
            torch._foreach_add_(momentum_buffers, steps)
            steps = momentum_buffers
        torch._foreach_sub_(parameters, steps)


class Adam:
    """Adam (Kingma and Ba 2014, arXiv:1412.6980) for many small updates: torch's fused kernel, called directly.

    The state exists from the beginning and never moves, so that states of several runs can be one tensor and a step can
    be captured. Weight decay adds weight_decay · θ to the gradient.

    With torch.optim.Adam(fused=True, capturable=True) in its place, whole runs take 1.35 times the CPU time in
    steve/steve_pendulum (1.29 and 1.42 in two rounds) and 1.25 times in sac/pendulum (one round): its steps cannot be
    recorded (accelerate/cpu_replay.py), and Python prepares each of them. Measured by benchmarks/cpu_paths.py on
    2026-11-20, one thread, torch 2.13.0. No library has a fused step without that preparation.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        learning_rate: float,
        weight_decay: float = 0.0,
        epsilon: float = 1e-8,
        norm: float | None = None,
    ):
        """Create an optimiser at step 0.

        Args:
          parameters: at least one, all on one device.
          learning_rate: of every step.
          weight_decay: L2.
          epsilon: ε of Adam.
          norm: gradients are scaled down to this global norm; None: they are not.
        """
        self._parameters = list(parameters)
        self._rate, self._decay, self._epsilon, self._norm = learning_rate, weight_decay, epsilon, norm
        self._first, self._second = ([torch.zeros_like(p.detach()) for p in self._parameters] for _ in range(2))
        self._steps = torch.zeros((), device=self._parameters[0].device)
        self._one = torch.ones_like(self._steps)  # adding a tensor is faster than adding a Python number

    @property
    def parameters(self) -> list[Tensor]:
        """Return the tensors that the optimiser changes."""
        return self._parameters

    @property
    def state(self) -> dict[str, Tensor]:
        """Return the optimiser's state by name: moments of each parameter, and the number of steps."""
        moments = {"exp_avg": self._first, "exp_avg_sq": self._second}
        named = {f"{number}/{name}": leaf for name, leaves in moments.items() for number, leaf in enumerate(leaves)}
        return {**named, "step": self._steps}

    def descend(self, loss: Tensor) -> Tensor | None:
        """Make one step on a loss; only the optimiser's own parameters receive gradients.

        Returns:
          The gradients' norm before it was scaled, where it may be.
        """
        return self.follow(torch.autograd.grad(loss, self._parameters))

    @torch.no_grad()
    def follow(self, found: Sequence[Tensor]) -> Tensor | None:
        """Make one step with given gradients, one per parameter; return what `descend` returns."""
        gradients = tuple(map(_laid_out_like, found, self._parameters))
        norm = None if self._norm is None else self._clip(gradients, self._norm)
        self._steps += self._one
        torch._fused_adam_(
            self._parameters,
            list(gradients),
            self._first,
            self._second,
            [],
            [self._steps] * len(gradients),
            lr=self._rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=self._decay,
            eps=self._epsilon,
            amsgrad=False,
            maximize=False,
        )
        return norm

    @staticmethod
    def _clip(gradients: tuple[Tensor, ...], norm: float) -> Tensor:
        found = torch.nn.utils.get_total_norm(gradients)
        torch._foreach_mul_(gradients, (norm / (found + 1e-6)).clamp(max=1.0))
        return found


def _laid_out_like(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return a gradient with its parameter's strides: the fused step on a CPU does not check that they are equal.

    Convolutions over channels-last pictures give gradients in another order than their weights have.
    """
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def make_optimiser(
    parameters: Iterable[Any],
    name: str,
    learning_rate: float,
    alpha: float = 0.99,
    momentum: float = 0.0,
    epsilon: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.999),
) -> torch.optim.Optimizer:
    """Return the optimiser that a configuration names.

    Args:
      parameters: at least one, all on one device.
      name: "rmsprop" (torch's, TorchBeast's), "rmsprop_tf" (the IMPALA paper's) or "adam".
      learning_rate: of the first step; `linear_decay` gives the later ones.
      alpha: decay of the second moment; the RMSProps only.
      momentum: the RMSProps only.
      epsilon: added to the denominator, differently in each: about 0.01 for RMSProp on summed losses, 1e-8 for Adam.
      betas: decays of the first and the second moment; "adam" only.

    Returns:
      The optimiser, its updates multi-tensor.
    """
    parameters = list(parameters)
    on_gpu = parameters[0].is_cuda
    # On a GPU the rate is a tensor, and steps are counted in a tensor: a captured update reads both.
    rate: Any = torch.tensor(learning_rate, device=parameters[0].device) if on_gpu else learning_rate
    more = {"foreach": True, "capturable": on_gpu}
    if name == "rmsprop":
        return torch.optim.RMSprop(parameters, lr=rate, alpha=alpha, eps=epsilon, momentum=momentum, **more)
    if name == "rmsprop_tf":
        return RMSPropTF(parameters, lr=rate, alpha=alpha, eps=epsilon, momentum=momentum)
    if name == "adam":
        return torch.optim.Adam(parameters, lr=rate, betas=betas, eps=epsilon, **more)
    raise ConfigError(f"the optimiser is {name!r}, expected one of {', '.join(OPTIMISERS)}")


def check_decay(settings: Any) -> None:
    """Raise a ConfigError unless `final_learning_rate` and `decay_updates` are both None or both in range."""
    check.not_negative(settings, "final_learning_rate")
    check.at_least(settings, 1, "decay_updates")
    if (settings.final_learning_rate is None) != (settings.decay_updates is None):
        name = type(settings).__name__
        raise ConfigError(f"{name}.final_learning_rate and {name}.decay_updates need each other: give both, or none")
    if settings.decay == "step" and settings.final_learning_rate is None:
        name = type(settings).__name__
        raise ConfigError(f"{name}.decay = 'step' needs {name}.final_learning_rate and {name}.decay_updates")
