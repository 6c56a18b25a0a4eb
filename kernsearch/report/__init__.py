"""What a person sees: progress, tables, explanations. Nothing here decides anything."""
