"""From the arguments of a call to requests of the core, and from their events to results."""
