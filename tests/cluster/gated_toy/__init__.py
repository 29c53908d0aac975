"""The toy recipe with a gate: at one step it waits, so that a fault meets it there for certain."""
