"""Workloads, measuring, records and the command line."""
