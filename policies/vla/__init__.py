"""Parts shared by the vision-language-action policies: vision, language model, images, prompts, statistics."""
