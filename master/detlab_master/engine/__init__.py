"""The engine: takes an event, lets the core decide, keeps the result, then carries out the effects."""
