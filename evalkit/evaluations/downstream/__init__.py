"""lm-eval's benchmarks as an evaluation of ours: which, on what data, and the checkpoint behind lm-eval's interface."""
