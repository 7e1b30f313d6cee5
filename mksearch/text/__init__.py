"""From text to integers: analyzers, vocabularies, weights and their quantisation."""
