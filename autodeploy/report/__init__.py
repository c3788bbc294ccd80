"""How to say it: tables and explanations."""
