"""Builds the site: pages, API, the gallery by running the examples; checks links and every code block."""
