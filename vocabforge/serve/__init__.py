"""What runs inside other servers: nothing here needs the training stack."""
