"""What source files say, read in confined processes."""
