"""Pictures and text of pipeline tables: which rank runs which operation, and when."""
