"""The classifier over HTTP: an API and a page, for one person or one small group on one machine."""
