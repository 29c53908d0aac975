"""Before anything is launched: batch, learning rate, memory, time and traffic of a run."""
