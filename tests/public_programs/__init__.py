"""Public programs, and what every call says of them."""
