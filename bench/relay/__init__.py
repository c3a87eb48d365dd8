"""What the relay costs: CPU of the frontend's process beside that of a Rust router, on instant engines."""
