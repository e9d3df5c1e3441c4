"""The Detlab master: API, scheduler, experiments, searchers, persistence."""
