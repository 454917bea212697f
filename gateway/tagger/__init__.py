"""Training of what foretells lengths, run offline by `gateway tagger`: the encoder and the boosted trees."""
