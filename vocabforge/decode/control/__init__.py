"""How much a cycle drafts: fixed or adaptive."""
