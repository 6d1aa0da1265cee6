"""The paper: one loop, its schedules, its hyperprior. Nothing here knows data, files or settings."""
