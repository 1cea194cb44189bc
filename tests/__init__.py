"""Tests of tirx-reduce."""
