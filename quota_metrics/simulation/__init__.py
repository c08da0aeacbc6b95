"""What-if: recorded usage replayed under other quotas, and the outcome per client. Sans-I/O."""
