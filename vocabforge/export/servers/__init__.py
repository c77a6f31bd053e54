"""How each server reads a drafter folder: tensors loaded, layers captured, logits computed."""
