"""Tool calls: which form a model writes them in, how that form is forced, and how calls are read back."""
