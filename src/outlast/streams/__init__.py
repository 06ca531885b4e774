"""Following tasks as they happen: one reader of the store per process, many cursors."""
