"""The library as a user sees it: what `import slipstream as ss` offers is made of these modules."""
