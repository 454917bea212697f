"""Training of what foretells lengths: the encoder (data, vocabulary, network, export) and the boosted trees. Run offline by `gateway tagger`."""
