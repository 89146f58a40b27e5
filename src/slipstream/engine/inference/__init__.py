"""Continuous batching in this process: requests, the cache's slots, the decoder, sampling."""
