"""What users hold: short forms of plans, plan documents, and later the files of the frameworks."""
