"""What to draft with on this machine: latency measured, acceptance measured, joined, searched and recommended."""
