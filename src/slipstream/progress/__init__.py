"""What a run shows on standard error while it runs, for the commands and the functions of the API alike."""
