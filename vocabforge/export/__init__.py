"""Export drafters to the formats that decoders and servers load."""
