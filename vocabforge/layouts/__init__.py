"""On-disk layouts of drafters, each with a writer and a strict reader."""
