"""Lower ONNX's losses by the neutral ones."""

from jangin.frontends.onnx.operators.families import family
from jangin.ops.loss import cross_entropy_loss, nll_loss

LOSSES = family({"NegativeLogLikelihoodLoss": nll_loss, "SoftmaxCrossEntropyLoss": cross_entropy_loss})
