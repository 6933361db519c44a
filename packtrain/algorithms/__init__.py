"""One readable file per algorithm (config, loss, learner), and the optimisers they share."""
