"""Tables, figures and pages that show results."""
