"""Training: a model's forward pass, its gradients and an optimizer's update as one compiled plan."""
