"""Tables, figures and one page from run folders; no model is touched here."""
