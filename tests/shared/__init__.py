"""What tests share: fakes, builders, and ways to run programs."""
