"""Where experience waits between an actor and a learner."""
