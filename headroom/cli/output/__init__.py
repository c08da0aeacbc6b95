"""What commands print on standard output."""
