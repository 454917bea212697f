"""Training of the length encoder: data, vocabulary, network, export. Run offline by `gateway tagger`."""
