"""Data: models, clusters and targets, one TOML file each, every number with its source."""
