"""How replicas agree: methods that turn an iteration's gradients into the next weights."""
