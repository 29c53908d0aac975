"""The toy recipe with places where a fault can be set off."""
