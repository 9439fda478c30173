"""Stand-in for torchtext, which ended and loads no current torch: the samples read text with it."""
