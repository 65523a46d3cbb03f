"""The reliability scorecard: laws about runs that are killed, starved and damaged. docs/reliability.md explains it."""
