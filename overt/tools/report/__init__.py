"""What is known of runs from their folders, as data, as lines of text and as one HTML page."""
