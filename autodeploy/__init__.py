"""Which parallel plan trains a model on a cluster fastest, does it fit, why, and how sure is that."""
