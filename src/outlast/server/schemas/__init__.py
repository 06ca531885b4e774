"""What travels: request bodies as they are checked, answers as they are described and written."""
