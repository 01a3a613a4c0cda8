"""Files of a run for its reader: report.html, junit.xml, and one page over many runs."""
