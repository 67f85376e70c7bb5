"""Which share of hidden values a pretrained model finds, by the length of the text and the depth in it."""
