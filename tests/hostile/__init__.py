"""Clients that mean harm, and two that do not: those must not notice."""
