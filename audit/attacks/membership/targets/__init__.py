"""What is attacked: a model in one of several formats, or scores that somebody else computed."""
