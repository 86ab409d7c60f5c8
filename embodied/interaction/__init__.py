"""The embodied loop: workers that let policies act in environments, and the records that pass between them."""
