"""The recipes that ship: YAML files, composed by Hydra; `embodied recipes` lists them."""
