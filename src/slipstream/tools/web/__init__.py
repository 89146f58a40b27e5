"""Web pages: fetched, made readable, and summarised towards a goal."""
