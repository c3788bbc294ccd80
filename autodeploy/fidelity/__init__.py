"""Is it true: published runs read, predicted and scored. Nothing here is fitted."""
