"""Language models: loading pretrained ones, and a tiny one that is made here."""
