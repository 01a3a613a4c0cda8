"""Files that a run leaves for its reader: report.html, junit.xml, and one page over many runs."""
