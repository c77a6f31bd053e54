"""Code that runs inside other servers; it does not need the training stack."""
