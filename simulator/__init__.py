"""A cluster in virtual time, on the same policy, placement and session code as the frontend."""
